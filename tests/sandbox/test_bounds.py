"""What needs no sandbox to be tried: limits and pins of the policy; frames and output as an enemy may write them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ledger.errors import BadInput
from ledger.records.job import SandboxLimits
from policy.ceilings import MIB, limits_of
from policy.images import PinnedImage, pin_image
from runners.sandbox.backend import SandboxBroken
from runners.sandbox.frames import Report
from runners.sandbox.output import BoundedOutput
from tests.sandbox.inside import spec_of

DIGEST = "sha256:" + "a" * 64
LOCKED = {"sandbox-python": PinnedImage(name="sandbox-python", digest=DIGEST, config="sha256:" + "b" * 64)}


@pytest.mark.parametrize(
    ("reference", "name", "digest"),
    [
        ("sandbox-python", "sandbox-python", DIGEST),
        (DIGEST, "sandbox-python", DIGEST),
        ("sha256:" + "c" * 64, "sha256:" + "c" * 64, "sha256:" + "c" * 64),
        ("host:5000/a/b:1.2@sha256:" + "c" * 64, "host:5000/a/b:1.2", "sha256:" + "c" * 64),
    ],
)
def test_an_image_is_named_by_the_lock_or_by_its_digest(reference: str, name: str, digest: str) -> None:
    pinned = pin_image(reference, LOCKED)
    assert (pinned.name, pinned.digest) == (name, digest)


@pytest.mark.parametrize("reference", ["python", "python:3.12", "docker.io/library/python:latest"])
def test_a_bare_tag_is_refused_with_the_line_that_pins_it(reference: str) -> None:
    with pytest.raises(BadInput) as refused:
        pin_image(reference, LOCKED, where="jobs[0].image")
    assert str(refused.value) == (
        f"jobs[0].image: {reference} is not pinned, and a tag can be moved; write the digest that "
        f"`docker image inspect --format '{{{{index .RepoDigests 0}}}}' {reference}` prints "
        "or a locked name (sandbox-python)"
    )


@pytest.mark.parametrize(
    "reference", ["", "--privileged", "a@sha256:12", "sha256:" + "A" * 64, "@" + DIGEST, "a b@" + DIGEST, "a;b", "a\n"]
)
def test_what_is_no_reference_is_refused(reference: str) -> None:
    with pytest.raises(BadInput, match="is no image reference"):
        pin_image(reference, LOCKED)


def test_limits_that_are_not_wished_follow_the_memory() -> None:
    assert limits_of(SandboxLimits()).workspace_bytes == 256 * MIB
    small = limits_of(SandboxLimits(memory_mb=64))
    assert (small.memory_bytes, small.workspace_bytes, small.tmp_bytes) == (64 * MIB, 16 * MIB, 16 * MIB)


@pytest.mark.parametrize(
    ("wished", "message"),
    [
        (SandboxLimits(memory_mb=1), "limits.memory_mb: 1 is out of bounds; give 32 to 65536"),
        (SandboxLimits(pids=1_000_000), "limits.pids: 1e+06 is out of bounds; give 16 to 16384"),
        (SandboxLimits(cpus=1000), "limits.cpus: 1000 is out of bounds; give 0.05 to 64"),
        (
            SandboxLimits(memory_mb=64, tmp_mb=64),
            "limits: workspace_mb and tmp_mb together are more than half of memory_mb, and both live in memory; "
            "raise memory_mb or lower one of them",
        ),
    ],
)
def test_limits_that_cannot_be_granted_are_refused_with_their_bounds(wished: SandboxLimits, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        limits_of(wished)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "command", [(), ("",), ("a\0b",), ("a", "\ud800"), ("a" * 100_001,), ("a", *["b" * 90_000] * 12)]
)
def test_what_cannot_be_executed_is_no_command(command: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        spec_of(DIGEST, *command)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 50))
def test_output_keeps_its_ends_and_counts_the_rest(pieces: list[bytes], limit: int) -> None:
    output, whole = BoundedOutput(limit), b"".join(pieces)
    for piece in pieces:
        output.feed(piece)
    assert output.total_bytes == len(whole)
    assert len(output.head) + len(output.tail) == min(limit, len(whole))
    assert whole.startswith(output.head)
    assert whole.endswith(output.tail)
    assert output.truncated == (len(whole) > limit)


FRAMES = (b"R 0\nE 18\nstatus=256\ncpu=1\n\nF 9\n0 ok\n<x/>F 6\n1 none").replace(
    b"1 none", b"1 ok\nx"
) + b"D 3\nabcD 2\ndeZ 10\nok\n./a\0./b"


@given(st.lists(st.integers(0, len(FRAMES))))
def test_a_report_is_the_same_in_whatever_pieces_it_comes(cuts: list[int]) -> None:
    report = Report(spec_of(DIGEST, "a", reports=("/tmp/a", "/tmp/b"), export_workspace=True))
    edges = sorted({0, *cuts, len(FRAMES)})
    for start, end in pairwise(edges):
        report.feed(FRAMES[start:end])
    assert report.started
    assert report.facts == {"status": "256", "cpu": "1", "": ""}
    assert [file.data for file in report.files.values()] == [b"<x/>", b"x"]
    assert (report.workspace_tar, report.workspace_sockets) == (b"abcde", ("a", "b"))


@pytest.mark.parametrize(
    "data",
    [b"X 0\n", b"R 1\n", b"E 99999999\n", b"F -1\n", b"no frame at all, and no end of line in sight",
     b"D 11\n" + b"x" * 11, b"D 6\n123456D 6\n123456", b"F 6\n7 ok\nx", b"F 7\n0 fine\n", b"Z 5\nwell\n"],
)  # fmt: skip
def test_what_is_no_report_is_refused(data: bytes) -> None:
    report = Report(spec_of(DIGEST, "a", reports=("/tmp/a",), export_workspace=True, workspace_export_bytes=10))
    with pytest.raises(SandboxBroken):
        report.feed(data)
