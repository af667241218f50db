r"""What runs inside a sandbox as its first process: unpacks, runs one command, reports, ends.

It is the container's PID 1, and that is what its promises rest on. Nothing inside a PID namespace can kill or stop its
first process, so the deadline holds against a command of the same user that forks, calls `setsid`, ignores SIGTERM or
sends SIGSTOP to all it sees; and when PID 1 ends, the kernel ends all others. It makes itself undumpable, so that the
command can neither write its memory through /proc/1/mem nor reach the report stream through /proc/1/fd. It reaps
orphans. It is the command's parent, so that a signal is told from an exit status of 128 + n. When the command has ended
it kills the rest before it reads what they left.

What it does not stop: the kernel's OOM killer may choose it (the command bears a higher score, so it comes first), and
whoever rules the engine can end it. Both show as a missing report, which the host does not take for an exit.

It is Perl because `perl-base` is an essential package of Debian and Ubuntu: any image derived from them has it, and no
shell can tell a signal from an exit status or hold a deadline by itself. Such an image needs `tar` and `find` too.

It is told what to do in two parts, and may have to wait between them: first the files that are there before any command
is known, then the command and what of the files has changed since. A sandbox whose second part follows at once is one
like any other; one that waits is armed. Whoever sent the first part and is gone sends no second: at the end of its
input, and when it has waited too long, it ends.

Streams: stdin carries what `runners.sandbox.orders` writes; stdout is the command's output, and after it a mark that
the command does not know, so that its end is seen however long the pipes stay open; stderr carries frames,
`KIND LENGTH\n` and as many bytes: `A` the first files are there · `R` the command starts · `E` facts about its end ·
`F` a report file · `D` a piece of the workspace's tar · `Z` what came of that tar. See `runners.sandbox.frames`.
"""

from __future__ import annotations

from ledger.errors import Unfit

INTERPRETER = "/usr/bin/perl"
WORKSPACE = "/workspace"

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108  (a path inside the sandbox)
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""All that a command finds in its environment, made from nothing: neither the host's nor the image's is passed on."""

PROXY = "http://127.0.0.1:3128"
"""Where the proxy of a command that has a network listens: on the sandbox's own loopback."""
PROXIED = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
}
"""What such a command finds in its environment besides. What is on the loopback is its own, and needs no proxy."""

STAGE_SECONDS = 60.0
"""The time that unpacking and reporting may take, each."""

# fmt: off
NUMBERS = {
    "x86_64": {
        "prctl": 157, "statfs": 137, "clock_gettime": 228, "setitimer": 38, "rt_sigaction": 13, "O_NOFOLLOW": 0o400000,
    },
    "aarch64": {
        "prctl": 167, "statfs": 43, "clock_gettime": 113, "setitimer": 103, "rt_sigaction": 134, "O_NOFOLLOW": 0o100000,
    },
}
# fmt: on
"""What Perl has no word for without its modules, by the engine's name of the architecture. The modules that have
(Time::HiRes, Fcntl) take longer to load than the rest of the wrapper to run, and the first is not in perl-base."""

WRAPPER = r"""
use strict;
$0 = 'patchyard';

my ($prctl, $statfs, $clock_gettime, $setitimer, $rt_sigaction, $O_NOFOLLOW) = splice @ARGV, 0, 6;
my ($stage, $patience) = splice @ARGV, 0, 2;
my %environment = @ARGV;
# Known when the command is.
my ($mark, $deadline, $report_cap, $workspace_cap, @reports, @command);
my ($EINTR, $EAGAIN, $WNOHANG) = (4, 11, 1);
my ($PR_SET_DUMPABLE, $CLOCK_MONOTONIC, $ITIMER_REAL, $O_NONBLOCK) = (4, 1, 0, 04000);

sub clock {
  my $now = "\0" x 16;
  syscall($clock_gettime, $CLOCK_MONOTONIC, $now);
  my ($seconds, $nanoseconds) = unpack 'q2', $now;
  return $seconds + $nanoseconds / 1e9;
}

# SIGALRM after the first time, and then again and again after the second. A time of 0 would be no timer at all.
sub timer {
  my ($first, $then) = map { $_ < 0.001 ? 0.001 : $_ } @_;
  syscall($setitimer, $ITIMER_REAL, pack('q4', map { int, int(1e6 * ($_ - int)) } $then, $first), 0);
}

syscall($prctl, $PR_SET_DUMPABLE, 0, 0, 0, 0);
# make(1) starts what it runs with the C library's own two signals ignored, and that is inherited all the way to here.
for my $signal (32, 33) {
  my ($number, $default) = ($signal, "\0" x 32);
  syscall($rt_sigaction, $number, $default, 0, 8);
}
open(my $frames, '>&', \*STDERR) or exit 125;
open(STDERR, '>&', \*STDOUT);
open(my $nothing, '<', '/dev/null');
%ENV = %environment;
umask 022;

# $end is the end of the present stage, $doom that of everything: then PID 1 goes, and all others with it.
my ($end, $doom) = (0, clock() + $patience + 2 * $stage + 10);
# It dies once for each stage: while one is set there is an eval around, and afterwards nobody would catch it.
$SIG{ALRM} = sub {
  exit 124 if clock() >= $doom;
  if ($end && clock() >= $end) { $end = 0; die "time\n" }
};

# A reader that is gone is told by the write itself. A command may have made the output non-blocking for all of us.
$SIG{PIPE} = 'IGNORE';
sub put {
  my ($to, $all) = @_;
  my $sent = 0;
  while ($sent < length $all) {
    my $n = syswrite $to, $all, length($all) - $sent, $sent;
    if (defined $n) { $sent += $n }
    elsif ($! == $EAGAIN) { select undef, undef, undef, 0.005 }
    elsif ($! != $EINTR) { return 0 }
  }
  return 1;
}

sub frame {
  my ($kind, $bytes) = @_;
  put($frames, "$kind " . length($bytes) . "\n" . $bytes) or exit 125;
}

# Orders. What was read and not yet taken is in $ahead.
my $ahead = '';
sub more {
  my $n;
  1 until defined($n = sysread STDIN, $ahead, 262144, length $ahead) || $! != $EINTR;
  exit 0 unless $n;
}

sub order {
  more() until $ahead =~ s/^([A-Z]) (\d+)\n//;
  return ($1, $2);
}

sub payload {
  my $length = shift;
  more() while length $ahead < $length;
  return substr $ahead, 0, $length, '';
}

sub pass_on {
  my ($length, $to) = @_;
  while ($length) {
    more() if $ahead eq '';
    my $piece = payload($length < length $ahead ? $length : length $ahead);
    put($to, $piece) or return 0;
    $length -= length $piece;
  }
  return 1;
}

# Wait for one child and reap all others meanwhile; its wait status, or undef when the time is over. The timer goes on
# ticking after its first shot: one that came between the look at the clock and the wait would be lost.
sub reap {
  my ($wanted, $seconds) = @_;
  my $status;
  eval {
    $end = clock() + $seconds;
    timer($seconds, 0.05);
    while ((my $pid = waitpid -1, 0) > 0) {
      if ($pid == $wanted) { $status = $?; last }
    }
    $end = 0;
  };
  timer(1, 1);
  return $status;
}

sub kill_the_rest {
  for (1 .. 100) {
    kill 'KILL', -1;
    reap(-1, 0.05);
    last if waitpid(-1, $WNOHANG) == -1;
  }
}

# Start a program in the workspace; its process id, and the errno if it could not be executed. It is dumpable again and
# comes first when memory runs out.
sub start {
  my ($in, $out, $err, @argv) = @_;
  pipe(my $failed, my $fail) or exit 125;
  my $pid = fork;
  exit 125 unless defined $pid;
  if (!$pid) {
    $SIG{$_} = 'DEFAULT' for 'ALRM', 'PIPE';
    setpgrp 0, 0;
    open(STDIN, '<&', $in);
    open(STDOUT, '>&', $out);
    open(STDERR, '>&', $err);
    syscall($prctl, $PR_SET_DUMPABLE, 1, 0, 0, 0);
    if (open my $score, '>', '/proc/self/oom_score_adj') { syswrite $score, 500; close $score }
    chdir '/workspace' and exec {$argv[0]} @argv;
    syswrite $fail, $! + 0;
    exit 127;
  }
  close $fail;
  my $errno = '';
  1 until defined sysread $failed, $errno, 16;
  return ($pid, $errno);
}

sub one_line {
  open my $file, '<', shift or return '';
  local $/;
  my $text = <$file>;
  $text =~ s/\s+/ /g;
  return $text;
}

sub space {
  my ($path, $buffer) = (shift, "\0" x 256);
  return syscall($statfs, $path, $buffer) == 0 ? join ',', (unpack 'q7', $buffer)[1 .. 6] : '';
}

sub report_file {
  my $path = shift;
  return ('missing', '') unless lstat $path;
  return ('not_a_file', '') unless -f _;
  return ('too_big', '') if -s _ > $report_cap;
  sysopen my $file, $path, $O_NOFOLLOW | $O_NONBLOCK or return ('not_a_file', '');
  my $bytes = '';
  while (length $bytes <= $report_cap) {
    my $n = sysread $file, $bytes, 65536, length $bytes;
    last if defined $n ? !$n : $! != $EINTR;
  }
  return ('ok', $bytes);
}

# Run a program and give its output to $take, piece by piece, until that returns false; whether all went well.
sub pieces_of {
  my ($take, @argv) = @_;
  pipe(my $from, my $to) or exit 125;
  open(my $nowhere, '>', '/dev/null');
  my ($pid) = start($nothing, $to, $nowhere, @argv);
  close $to;
  my $whole = 0;
  while (1) {
    my $n = sysread $from, my $piece, 65536;
    next if !defined $n && $! == $EINTR;
    if (!$n) { $whole = defined $n; last }
    last unless $take->($piece);
  }
  close $from;
  my $status = reap($pid, $stage);
  kill_the_rest();
  return $whole && defined $status && $status == 0;
}

# Take away a file or a whole folder. Links are not followed; no command has run yet that could be in the way.
sub take_away {
  my $path = shift;
  if (lstat $path && -d _) {
    if (opendir my $folder, $path) {
      take_away("$path/$_") for grep { $_ ne '.' && $_ ne '..' } readdir $folder;
    }
    rmdir $path;
  }
  else { unlink $path }
}

# Follow orders about files up to the one that ends them; whether all went well, and how long it took.
sub unpack_until {
  my ($last, $began) = (shift, clock());
  my ($tar, $to);
  my $well = 1;
  my $whole = eval {
    $end = clock() + $stage;
    timer($stage, 0.05);
    while (1) {
      my ($kind, $length) = order();
      last if $kind eq $last;
      if ($kind eq 'W') { take_away("/workspace/$_") for split /\0/, payload($length); next }
      exit 125 unless $kind eq 'T';
      if (!$tar) {
        pipe(my $from, $to) or exit 125;
        ($tar) = start($from, \*STDOUT, \*STDOUT, 'tar', '-xf', '-');
      }
      $well = pass_on($length, $to) or last;
    }
    $end = 0;
    1;
  };
  timer(1, 1);
  close $to if $to;
  my $status = $tar ? reap($tar, $stage) : 0;
  kill_the_rest() if $tar;
  return ($whole && $well && defined $status && $status == 0 ? 1 : 0, int(1000 * (clock() - $began)));
}

# The order of the command, or the end: nobody waits for a sandbox that nobody needed in time.
sub command {
  my ($kind, $length);
  my $came = eval {
    $end = clock() + $patience;
    timer($patience, 0.05);
    ($kind, $length) = order();
    $end = 0;
    1;
  };
  timer(1, 1);
  exit 0 unless $came;
  exit 125 unless $kind eq 'X';
  return split /\0/, payload($length), -1;
}

my (%fact, $status);
($fact{unpacked}, $fact{ahead_ms}) = unpack_until('U');
if ($fact{unpacked}) {
  frame('A', '');
  ($mark, $deadline, $report_cap, $workspace_cap, my ($reports, @rest)) = command();
  @reports = splice @rest, 0, $reports;
  @command = @rest;
  $doom = clock() + $deadline + 2 * $stage + 10;
  ($fact{unpacked}, $fact{unpack_ms}) = unpack_until('G');
}
open(STDIN, '<&', $nothing);
if ($fact{unpacked}) {
  my $ready = clock();
  frame('R', '');
  my ($pid, $errno) = start($nothing, \*STDOUT, \*STDOUT, @command);
  $status = reap($pid, $deadline);
  $fact{run_ms} = int(1000 * (clock() - $ready));
  kill_the_rest();
  if ($errno) { $fact{exec_errno} = $errno }
  elsif (defined $status) { $fact{status} = $status }
  else { $fact{timed_out} = 1 }
}
put(\*STDOUT, $mark) if defined $mark;
my (undef, undef, $user, $system) = times;
$fact{cpu_ms} = int(1000 * ($user + $system));
$fact{"disk:$_"} = space($_) for '/workspace', '/tmp';
$fact{"cgroup:$_"} = one_line("/sys/fs/cgroup/$_") for qw(memory.events memory.peak pids.events
  memory/memory.oom_control memory/memory.max_usage_in_bytes memory/memory.failcnt pids/pids.events);
frame('E', join '', map { "$_=$fact{$_}\n" } sort keys %fact);
exit 0 unless $fact{unpacked};

for my $index (0 .. $#reports) {
  my ($state, $bytes) = report_file($reports[$index]);
  frame('F', "$index $state\n$bytes");
}
if ($workspace_cap) {
  my ($sockets, $sent) = ('', 0);
  pieces_of(sub { $sockets .= shift; length $sockets < 65536 }, 'find', '.', '-type', 's', '-print0');
  my $packed = pieces_of(sub {
    my $piece = shift;
    $sent += length $piece;
    return 0 if $sent > $workspace_cap;
    frame('D', $piece);
    return 1;
  }, 'tar', '-cf', '-', '.');
  frame('Z', ($packed ? 'ok' : $sent > $workspace_cap ? 'too_big' : 'failed') . "\n$sockets");
}
"""


def argv(architecture: str, armed_seconds: float | None = None, *, proxied: bool = False) -> list[str]:
    """The container's whole command line: nothing in it is of one command. Without `armed_seconds`, its command follows
    its files at once; when it is `proxied`, it is told of the proxy. Raises Unfit for an architecture whose system
    calls we do not know."""
    numbers = NUMBERS.get(architecture)
    if numbers is None:
        raise Unfit(f"no sandboxes on {architecture}", remedy=f"use an engine on {' or '.join(NUMBERS)}")
    variables = ENVIRONMENT | (PROXIED if proxied else {})
    environment = [part for pair in variables.items() for part in pair]
    return [
        INTERPRETER, "-e", WRAPPER,
        *map(str, numbers.values()),
        f"{STAGE_SECONDS:.3f}", f"{armed_seconds or STAGE_SECONDS:.3f}", *environment,
    ]  # fmt: skip
