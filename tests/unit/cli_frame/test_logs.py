"""A log stays small while somebody writes to it, and its end can be read."""

from __future__ import annotations

from pathlib import Path

from patchyard.local.logs import last_lines, rotate


def test_a_log_that_grew_is_cut_under_its_writer(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("a") as writer:
        for turn in range(5):
            writer.write(f"turn {turn} " + "x" * 100 + "\n")
            writer.flush()
            assert rotate(log, limit_bytes=50, kept=2)
            assert log.stat().st_size == 0
    assert log.with_name("a.log.1").read_text().startswith("turn 4 ")
    assert log.with_name("a.log.2").read_text().startswith("turn 3 ")
    assert not log.with_name("a.log.3").exists()


def test_a_small_log_and_a_missing_one_are_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert not rotate(log)
    log.write_text("short\n")
    assert not rotate(log)
    assert log.read_text() == "short\n"


def test_the_last_lines_skip_empty_ones_and_bear_any_bytes(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert last_lines(log) == []
    log.write_bytes(b"one\ntwo\xff\n\n  \n")
    assert last_lines(log, 1) == ["two\ufffd"]
    assert last_lines(log, 5) == ["one", "two\ufffd"]
