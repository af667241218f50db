"""Boundaries tried by force: each attack runs in a sandbox of its own, and has to end as the boundary says.

An attack stops by itself a little beyond its bound, so that trying a boundary that is not there does no harm to the
machine. What came of it is judged by the result record, which a job's commands get too: the verdict and the boundary
are tried together. Nothing is judged by how fast it was, since a busy machine is slow and not unsafe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from policy.ceilings import KIB, MIB, Limits
from runners.sandbox import wrapper
from runners.sandbox.bounds import TMP
from runners.sandbox.probe.seen import NotObserved, answer
from runners.sandbox.spec import SandboxResult

_EFBIG, _ENOSPC, _EAGAIN = "27", "28", "11"
_SMALL = Limits(
    memory_bytes=64 * MIB,
    cpus=1.0,
    pids=32,
    file_size_bytes=MIB,
    workspace_bytes=4 * MIB,
    tmp_bytes=4 * MIB,
    output_bytes=64 * KIB,
    output_cap_bytes=MIB,
)

EATS = r"""
use strict;
use POSIX ();
my ($memory) = @ARGV;
sub ticks { return (POSIX::times())[0] }
sub throttled {
  for my $file ('/sys/fs/cgroup/cpu.stat', '/sys/fs/cgroup/cpu/cpu.stat') {
    open my $stat, '<', $file or next;
    local $/;
    return $1 if <$stat> =~ /nr_throttled (\d+)/;
  }
  return '-';
}
my $hertz = POSIX::sysconf(POSIX::_SC_CLK_TCK());
my ($began, $first, $throttled, $elapsed) = (ticks(), throttled(), '-', 0);
my ($user, $system) = times;
until ($elapsed >= 3 || $elapsed >= 0.4 && ($first eq '-' || $throttled > $first)) {
  1 for 1 .. 20000;
  $elapsed = (ticks() - $began) / $hertz;
  $throttled = throttled();
}
my ($user_now, $system_now) = times;
syswrite STDOUT, sprintf "processor %d %d %s\n", 1000 * ($user_now + $system_now - $user - $system), 1000 * $elapsed,
  $throttled eq '-' ? '-' : $throttled - $first;
my $eaten = "\1" x (4 * $memory);
syswrite STDOUT, "not stopped\n";
"""
"""Takes all the processor it gets, until it was throttled; then four times its memory."""

FILLS = r"""
use strict;
my ($single, @places) = @ARGV;
$SIG{XFSZ} = 'IGNORE';
sub fill {
  my ($file, $most) = @_;
  my ($piece, $written) = ("\1" x 16384, 0);
  open my $out, '>', $file or return (0, $! + 0);
  while ($written < $most) {
    my $n = syswrite $out, $piece;
    return ($written, $! + 0) unless defined $n;
    $written += $n;
  }
  return ($written, 0);
}
my ($written, $errno) = fill('/tmp/single', 4 * $single);
print "file $written $errno\n";
unlink '/tmp/single';
while (my ($place, $size) = splice @places, 0, 2) {
  my ($total, $number) = (0, 0);
  ($errno) = (0);
  while (!$errno && $total < 4 * $size) {
    ($written, $errno) = fill("$place/fill" . $number++, $single / 2);
    $total += $written;
  }
  print "place $place $total $errno\n";
}
exit 1;
"""
"""Writes one file beyond its limit, and then as many as a place can hold."""

FLEES = r"""
use strict;
my ($most) = @ARGV;
$SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT ALRM USR1 USR2);
setpgrp 0, 0;
if (!fork) {
  require POSIX;
  POSIX::setsid();
  if (!fork) {
    my $born = 0;
    while ($born < 4 * $most) {
      my $pid = fork;
      if (!defined $pid) { syswrite STDOUT, "stopped $born " . ($! + 0) . "\n"; last }
      if (!$pid) { select undef, undef, undef, 0.05 while 1 }
      $born++;
    }
    my $stopped = $born < 4 * $most;
    kill 'STOP', 1;
    while (1) { fork if $stopped; select undef, undef, undef, 0.01 }
  }
  exit 0;
}
select undef, undef, undef, 0.05 while 1;
"""
"""Leaves its session and its parent, ignores every polite signal, and breeds."""

FLOODS = r"""
my ($piece, $most, $written) = ("x" x 16384, 64 * $ARGV[0], 0);
while ($written < $most) { my $n = syswrite STDOUT, $piece; last unless defined $n; $written += $n }
"""
"""Says more than anybody may."""


@dataclass(frozen=True)
class Attack:
    """A program, the bounds that it is held to, and how its result has to look, for each promise that it tries.
    `cancel_after_seconds` is when it is cancelled, counted from when it could begin."""

    program: str
    arguments: tuple[str, ...]
    judges: Mapping[str, Callable[[SandboxResult, Attack], tuple[bool, str]]]
    limits: Limits = _SMALL
    deadline_seconds: float = 20.0
    cancel_after_seconds: float | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What to run."""
        return (wrapper.INTERPRETER, "-e", self.program, *self.arguments)

    def unhurried(self) -> Attack:
        """The same attack with time enough on a machine that has little to spare."""
        return replace(self, deadline_seconds=5 * self.deadline_seconds)


def processor(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """A busy loop gets its share and no more. The kernel counted that it was held back, unless the machine was too busy
    to give it even its share."""
    used, elapsed, throttled = _line(result, "processor")
    share = attack.limits.cpus * int(elapsed)
    held_back = int(used) <= share if throttled == "0" else int(used) <= 1.15 * (share + 200 * attack.limits.cpus)
    return held_back, f"{used} ms of {elapsed} at {attack.limits.cpus:g} processors, throttled {throttled} times"


def memory(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """Taking more than there is ends in the verdict oom_killed, by the kernel's own count."""
    peak = result.peak_memory_bytes
    ok = result.ended == "oom_killed" and result.oom_kills > 0 and (peak or 0) <= attack.limits.memory_bytes
    return ok, f"{_end(result)}, {result.oom_kills} killed for memory, at most {peak} bytes in use"


def disk(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """Every writable place is full at its size, and the verdict is disk_full."""
    rows = _lines(result, "place")
    sizes = dict(zip(attack.arguments[1::2], attack.arguments[2::2], strict=True))
    ok = result.ended == "disk_full" and {row[0] for row in rows} == set(sizes)
    ok = ok and all(int(written) <= int(sizes[place]) and said == _ENOSPC for place, written, said in rows)
    return (
        ok,
        f"{_end(result)}; {'; '.join(f'{place} {written} bytes, {answer(said)}' for place, written, said in rows)}",
    )


def file_size(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """One file stops at its size."""
    written, said = _line(result, "file")
    return said == _EFBIG and int(written) <= attack.limits.file_size_bytes, f"{written} bytes, {answer(said)}"


def processes(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """A fork bomb is stopped below the limit, by the kernel's own count where the sandbox could still report it."""
    born, said = _line(result, "stopped")
    counted = result.refused_forks > 0 or not result.evidence.get("reported", False)
    ok = int(born) < attack.limits.pids and said == _EAGAIN and counted
    return ok, f"{born} born of {attack.limits.pids} allowed, {answer(said)}, {result.refused_forks} refused"


def deadline(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """What left its session and ignores every signal is dead at the deadline, and its sandbox is gone."""
    took_ms, least_ms = result.timings.run_ms, round(1000 * attack.deadline_seconds) - 50
    by = "by the clock outside" if result.evidence.get("ended_by_us") else "by the fuse inside"
    return result.ended == "timed_out" and took_ms >= least_ms, f"{_end(result)} after {took_ms} ms, {by}"


def output(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """A flood of output is cut off, and only a bounded part of it is kept."""
    kept = len(result.output_head) + len(result.output_tail)
    ok = result.ended == "output_flooded" and result.output_truncated and kept <= attack.limits.output_bytes
    return ok, f"{_end(result)} at {result.output_bytes} bytes, {kept} kept"


def cancel(result: SandboxResult, attack: Attack) -> tuple[bool, str]:
    """A cancelled run ends although it ignores every signal."""
    return result.ended == "cancelled", f"{_end(result)} after {result.timings.run_ms} ms"


ATTACKS = (
    Attack(
        program=FLEES,
        arguments=(str(_SMALL.pids),),
        judges={"force.processes": processes, "force.deadline": deadline},
        deadline_seconds=0.8,
    ),
    Attack(
        program=EATS,
        arguments=(str(_SMALL.memory_bytes),),
        judges={"force.processor": processor, "force.memory": memory},
        limits=_SMALL.model_copy(update={"cpus": 0.25}),
    ),
    Attack(
        program=FILLS,
        arguments=(str(_SMALL.file_size_bytes), wrapper.WORKSPACE, str(_SMALL.workspace_bytes), TMP,
                   str(_SMALL.tmp_bytes)),
        judges={"force.disk": disk, "force.file_size": file_size},
    ),
    Attack(program=FLOODS, arguments=(str(MIB),), judges={"force.output": output}),
    Attack(program=FLEES, arguments=(str(_SMALL.pids),), judges={"force.cancel": cancel}, cancel_after_seconds=0.2),
)  # fmt: skip


def _end(result: SandboxResult) -> str:
    return result.ended.replace("_", " ")


def _lines(result: SandboxResult, word: str) -> list[list[str]]:
    """What the attack said under this word."""
    rows = [line.split() for line in result.output.decode(errors="replace").splitlines()]
    return [row[1:] for row in rows if row[:1] == [word]]


def _line(result: SandboxResult, word: str) -> list[str]:
    rows = _lines(result, word)
    if len(rows) != 1:
        raise NotObserved(f"the attack did not say how it went ({_end(result)})")
    return rows[0]
