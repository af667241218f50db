from pathlib import PurePosixPath

from linkcheck import Link, links_of, missing_links, resolve


def test_links_to_other_sites_and_anchors_are_left_out():
    text = "[a](https://example.test/a) [b](b.md)\n[c](#c) [d](d.md#part)\n"
    assert list(links_of(text)) == [Link("b.md", 1), Link("d.md#part", 2)]


def test_a_link_of_a_document_at_the_top():
    assert resolve(PurePosixPath("index.md"), "guide/start.md#first") == PurePosixPath("guide/start.md")


def test_a_link_with_a_leading_slash():
    assert resolve(PurePosixPath("guide/start.md"), "/index.md") == PurePosixPath("index.md")


def test_missing_files_are_listed(tmp_path):
    (tmp_path / "index.md").write_text("[there](there.md)\n[gone](gone.md)\n")
    (tmp_path / "there.md").write_text("hello\n")
    assert missing_links(tmp_path) == ["index.md:2: gone.md"]
