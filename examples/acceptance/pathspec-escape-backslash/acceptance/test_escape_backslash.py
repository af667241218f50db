"""The escaped form of a name is a pattern that matches this name."""

from pathspec.patterns.gitwildmatch import GitWildMatchPattern


def test_a_backslash_is_escaped():
    assert GitWildMatchPattern.escape("a\\b") == "a\\\\b"


def test_a_backslash_before_a_star():
    assert GitWildMatchPattern.escape("a\\*") == "a\\\\\\*"


def test_bytes_too():
    assert GitWildMatchPattern.escape(b"a\\b") == b"a\\\\b"


def test_the_pattern_matches_the_name():
    name = "back\\slash.txt"
    assert GitWildMatchPattern(GitWildMatchPattern.escape(name)).match_file(name)


def test_names_without_backslash():
    assert GitWildMatchPattern.escape("#1[a]!?*") == "\\#1\\[a\\]\\!\\?\\*"
    assert GitWildMatchPattern.escape(b"plain") == b"plain"
