"""Links of documents in sub-folders count from the document."""

from pathlib import PurePosixPath

from linkcheck import missing_links, resolve


def test_a_neighbour_is_found(tmp_path):
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "start.md").write_text("[next](next.md)\n")
    (tmp_path / "guide" / "next.md").write_text("[home](../index.md)\n")
    (tmp_path / "index.md").write_text("[start](guide/start.md)\n")
    assert missing_links(tmp_path) == []


def test_a_file_of_the_same_name_elsewhere_does_not_count(tmp_path):
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "start.md").write_text("[next](next.md)\n")
    (tmp_path / "next.md").write_text("hello\n")
    assert missing_links(tmp_path) == ["guide/start.md:1: next.md"]


def test_a_link_to_the_folder_above():
    assert resolve(PurePosixPath("guide/start.md"), "../about/us.md") == PurePosixPath("about/us.md")


def test_a_leading_slash_still_means_the_top():
    assert resolve(PurePosixPath("guide/start.md"), "/next.md") == PurePosixPath("next.md")
