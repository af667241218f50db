"""What goes in and what comes out: files, output, reports, the workspace."""

from __future__ import annotations

import io
import tarfile
import threading
import time

import pytest

from policy.ceilings import KIB, MIB, Limits
from runners.sandbox.backend import Backend, SandboxBroken
from tests.sandbox.inside import python, sh, spec_of, tar_of

pytestmark = pytest.mark.engine


def _members(tar: bytes | None) -> dict[str, tarfile.TarInfo]:
    assert tar is not None
    with tarfile.open(fileobj=io.BytesIO(tar)) as packed:
        return {member.name: member for member in packed}


@pytest.mark.every_runtime
def test_files_arrive_as_they_were_packed(backend: Backend, sandbox_image: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, mode in (("run me.sh", 0o755), ("später\n.txt", 0o644)):
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = mode, 3
            tar.addfile(entry, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "run me.sh"
        tar.addfile(link)
    spec = spec_of(sandbox_image, "sh", "-c", r"find * -printf '%m %s %p>%l|'")
    result = backend.run(spec, [packed.getvalue()[:700], packed.getvalue()[700:]])
    assert result.output.decode() == "777 9 link>run me.sh|755 3 run me.sh>|644 3 später\n.txt>|"


def test_a_large_workspace_goes_in_and_comes_out(backend: Backend, sandbox_image: str) -> None:
    files = {f"folder/{number}": bytes([number]) * 500_000 for number in range(40)}
    result = sh(backend, sandbox_image, "cat folder/* | wc -c", files, export_workspace=True)
    assert result.output == b"20000000\n"
    assert set(_members(result.workspace_tar)) == {".", "./folder", *(f"./{name}" for name in files)}


def test_a_command_that_does_not_read_its_files_is_no_trouble(backend: Backend, sandbox_image: str) -> None:
    assert sh(backend, sandbox_image, 'read x; echo "<$x>"', {"a": bytes(5 * MIB)}).output == b"<>\n"


def test_an_archive_that_is_none_is_our_fault_and_said(backend: Backend, sandbox_image: str) -> None:
    with pytest.raises(SandboxBroken, match="does not look like a tar archive"):
        backend.run(spec_of(sandbox_image, "true"), [b"garbage" * 1000])


def test_output_and_errors_come_in_the_order_they_were_written(backend: Backend, sandbox_image: str) -> None:
    result = sh(backend, sandbox_image, "for i in 1 2 3; do echo out $i; echo err $i >&2; done")
    assert result.output == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"
    assert (result.output_truncated, result.output_bytes) == (False, 36)


def test_output_is_bounded_and_its_ends_are_kept(backend: Backend, sandbox_image: str) -> None:
    limits = Limits(output_bytes=2 * KIB)
    result = sh(backend, sandbox_image, "seq 1 200000", limits=limits)
    assert result.output_truncated
    assert result.output_bytes == 1_288_895
    assert len(result.output_head) == len(result.output_tail) == KIB
    assert result.output_head.startswith(b"1\n2\n3\n")
    assert result.output_tail.endswith(b"\n199999\n200000\n")
    assert b"\n[... 1286847 bytes left out ...]\n" in result.output
    assert result.exit_code == 0


def test_a_flood_is_cut_off(backend: Backend, sandbox_image: str) -> None:
    began = time.monotonic()
    result = sh(backend, sandbox_image, "yes", limits=Limits(output_cap_bytes=4 * MIB), deadline_seconds=60)
    assert (result.ended, result.exit_code, result.signal) == ("output_flooded", None, None)
    assert time.monotonic() - began < 20
    assert result.timings.run_ms > 0


@pytest.mark.every_runtime
def test_report_files_come_out_and_each_says_how_it_was(backend: Backend, sandbox_image: str) -> None:
    script = """
printf '<testsuite/>' > /tmp/report.xml; : > /tmp/empty; head -c 2000 /dev/zero > /tmp/big
mkfifo /tmp/fifo; mkdir /tmp/folder; ln -s /etc/passwd /tmp/link; ln -s . /workspace/sub; echo in > '/workspace/a b'
exit 3
"""
    paths = ("/tmp/report.xml", "/tmp/empty", "/tmp/big", "/tmp/fifo", "/tmp/folder", "/tmp/link", "/tmp/none",
             "/workspace/a b")  # fmt: skip
    result = sh(backend, sandbox_image, script, reports=paths, report_bytes=1000)
    assert [(report.path, report.state, report.data) for report in result.reports] == [
        ("/tmp/report.xml", "ok", b"<testsuite/>"),
        ("/tmp/empty", "ok", b""),
        ("/tmp/big", "too_big", b""),
        ("/tmp/fifo", "not_a_file", b""),
        ("/tmp/folder", "not_a_file", b""),
        ("/tmp/link", "not_a_file", b""),
        ("/tmp/none", "missing", b""),
        ("/workspace/a b", "ok", b"in\n"),
    ]
    assert (result.exit_code, result.workspace_state, result.workspace_tar) == (3, "not_asked", None)


def test_a_workspace_with_hostile_names_comes_out_whole(backend: Backend, sandbox_image: str) -> None:
    code = r"""
import os, socket
for name in (b'-rf', b'--checkpoint-action=exec=sh', b'new\nline', b'caf\xe9', b' ', b'a' * 255):
    open(name, 'w').close()
os.makedirs('d' * 100 + '/' + 'e' * 100 + '/' + 'f' * 100)
os.symlink('/etc/shadow', 'out'); os.symlink('../' * 20, 'up'); os.link('-rf', 'hard'); os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('listens')
"""
    result = python(backend, sandbox_image, code, export_workspace=True)
    assert result.exit_code == 0, result.output
    members = _members(result.workspace_tar)
    assert {"./-rf", "./--checkpoint-action=exec=sh", "./new\nline", "./caf\udce9", "./ ", "./" + "a" * 255} < set(
        members
    )
    assert members["./out"].linkname == "/etc/shadow"
    assert members["./fifo"].isfifo()
    assert "./listens" not in members
    assert result.workspace_sockets == ("listens",)


def test_a_workspace_over_its_cap_stays_inside(backend: Backend, sandbox_image: str) -> None:
    script = "truncate -s 200M sparse"
    result = sh(backend, sandbox_image, script, export_workspace=True, workspace_export_bytes=MIB)
    assert (result.exit_code, result.workspace_state, result.workspace_tar) == (0, "too_big", None)


@pytest.mark.every_runtime
def test_a_cancelled_command_ends_at_once(backend: Backend, sandbox_image: str) -> None:
    cancel = threading.Event()
    timer = threading.Timer(1.0, cancel.set)
    timer.start()
    began = time.monotonic()
    result = backend.run(spec_of(sandbox_image, "sh", "-c", "echo begun; sleep 60"), tar_of(), cancel)
    assert result.ended == "cancelled"
    assert result.output == b"begun\n"
    assert time.monotonic() - began < 30
    assert result.timings.run_ms > 0


def test_many_run_at_once(backend: Backend, sandbox_image: str) -> None:
    results: dict[int, bytes] = {}

    def one(number: int) -> None:
        results[number] = sh(backend, sandbox_image, f"cat in; echo {number}", {"in": b"%d " % number}).output

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: b"%d %d\n" % (number, number) for number in range(8)}


def test_the_result_says_what_ran_it(backend: Backend, sandbox_image: str) -> None:
    result = sh(backend, sandbox_image, "true")
    assert result.image == sandbox_image
    assert result.engine is not None
    assert result.engine.cgroup_version in (1, 2)
    assert result.engine.runtime_version
    assert result.timings.total_ms >= result.timings.start_ms > 0
    assert result.cpu_ms is not None
