"""Bumping a build always gives another build."""

from semver import Version


def bumped(text, *args):
    return str(Version.parse(text).bump_build(*args))


def test_a_word_gets_a_number():
    assert bumped("1.2.3+nightly") == "1.2.3+nightly.0"


def test_words_get_a_number_and_count_on():
    assert bumped("1.2.3-rc.1+exp.sha") == "1.2.3-rc.1+exp.sha.0"
    assert bumped(bumped("1.2.3-rc.1+exp.sha")) == "1.2.3-rc.1+exp.sha.1"


def test_numbers_count_on():
    assert bumped("1.2.3+build.9") == "1.2.3+build.10"
    assert bumped("1.2.3+7") == "1.2.3+8"


def test_a_version_without_build():
    assert bumped("1.2.3") == "1.2.3+build.1"
    assert bumped("1.2.3", "") == "1.2.3+1"
    assert bumped("1.2.3", None) == "1.2.3+build.1"
    assert bumped("1.2.3", "nightly") == "1.2.3+nightly.1"


def test_the_original_is_left_alone():
    version = Version.parse("1.2.3+build.1")
    version.bump_build()
    assert str(version) == "1.2.3+build.1"
