r"""What a probe runs inside of a sandbox: it looks, tries, and writes down what came of it, without an opinion.

It is an ordinary command of the sandbox, in Perl for the wrapper's reasons: every image that can serve has it, and
perhaps nothing else. What it finds is judged on the host. It can be trusted as far as the image's Perl can, which is
why the same boundaries are looked at from outside too (`record`, `kernel`).

The report is JSON lines, `{"name": …, "value": …}`, the last of them `end` with the number of those before it. Values
are bytes, one character each. An errno is written as its number, so that no image's language matters. Whatever might
change the process for good is tried in a child.
"""

from __future__ import annotations

from ledger.errors import Unfit
from runners.sandbox.wrapper import ENVIRONMENT, INTERPRETER

REPORT = "/tmp/.patchyard-probe"  # noqa: S108  (a path inside the sandbox)
FIRST_PROCESS = "patchyard"
"""The name that the wrapper gives itself."""
NEW_USER, NEW_MOUNTS, NEW_NETWORK = 0x10000000, 0x20000, 0x40000000
SIGCHLD = 17

TRIES: dict[str, tuple[int, int, tuple[int | str, ...]]] = {
    "socket_alg": (41, 198, (38, 5, 0)),
    "socket_vsock": (41, 198, (40, 1, 0)),
    "socket_packet": (41, 198, (17, 3, 0)),
    "io_uring_setup": (425, 425, (0, 0)),
    "keyctl": (250, 219, (0, -3, 0)),
    "add_key": (248, 217, (0, 0, 0, 0, -3)),
    "request_key": (249, 218, (0, 0, 0, -3)),
    "unshare_user": (272, 97, (NEW_USER,)),
    "unshare_mounts": (272, 97, (NEW_MOUNTS,)),
    "clone_user": (56, 220, (NEW_USER | SIGCHLD, 0, 0, 0, 0)),
    "clone_network": (56, 220, (NEW_NETWORK | SIGCHLD, 0, 0, 0, 0)),
    "clone3": (435, 435, (0, 0)),
    "setns": (308, 268, (-1, 0)),
    "bpf": (321, 280, (-1, 0, 0)),
    "userfaultfd": (323, 282, (1,)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "umount": (166, 39, ("/tmp", 0)),  # noqa: S108
    "open_tree": (428, 428, (-1, 0, -1)),
    "fsopen": (430, 430, (0, -1)),
    "mount_setattr": (442, 442, (-1, 0, 0, 0, 0)),
    "ptrace": (101, 117, (16, "@another", 0, 0)),
    "process_vm_readv": (310, 270, ("@another", 0, 0, 0, 0, 0)),
    "process_vm_writev": (311, 271, ("@another", 0, 0, 0, 0, 0)),
    "pidfd_getfd": (438, 438, (-1, 0, 0)),
    "name_to_handle_at": (303, 264, (-1, 0, 0, 0, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "init_module": (175, 105, (0, 0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, 0)),
}
"""System calls that no command needs and escapes have used: their numbers on x86_64 and aarch64, and arguments with
which a kernel that lets the call through says something else than EPERM, or does it. `@another` is another process."""

PROGRAM = r"""
use strict;
use Fcntl;
use POSIX ();
use Socket qw(AF_INET AF_INET6 AF_UNIX SOCK_STREAM SOCK_DGRAM pack_sockaddr_in pack_sockaddr_un inet_aton);

my ($report, $statfs, $mknodat, $variables) = splice @ARGV, 0, 4;
my %expected = splice @ARGV, 0, 2 * $variables;
my @tries = @ARGV;
my $told = 0;
open(my $out, '>', $report) or exit 3;

sub tell_of {
  my ($name, $value) = @_;
  $value = substr $value, 0, 60000;
  for ($name, $value) { s/([^ !#-\[\]-~])/sprintf '\\u%04x', ord $1/ge }
  syswrite $out, qq({"name":"$name","value":"$value"}\n);
  $told++;
}

sub number { return $! + 0 }

sub slurp {
  my ($path, $most) = @_;
  sysopen my $file, $path, O_RDONLY | O_NONBLOCK or return (undef, number());
  my $text = '';
  while (length $text < $most) {
    my $n = sysread $file, $text, 16384, length $text;
    return (undef, number()) unless defined $n;
    last unless $n;
  }
  return ($text, 0);
}

# In a child: what it exits with is its answer, 0 for done and else an errno; a signal is told apart.
sub in_a_child {
  my ($act, $seconds) = @_;
  my $pid = fork;
  return 'fork ' . number() unless defined $pid;
  if (!$pid) {
    $SIG{ALRM} = 'DEFAULT';
    alarm $seconds;
    POSIX::_exit($act->());
  }
  waitpid $pid, 0;
  return $? & 127 ? 'signal ' . ($? & 127) : $? >> 8 ? '' . ($? >> 8) : 'done';
}

# -- files of the kernel ----------------------------------------------------------------------------------------------
for my $path (
  (map { "/proc/self/$_" } qw(status mountinfo limits uid_map gid_map cgroup)), '/proc/1/status', '/proc/1/cmdline',
  (map { "/proc/net/$_" } qw(dev route ipv6_route tcp tcp6)), '/proc/swaps', '/etc/resolv.conf', '/etc/hosts',
  (map { "/sys/fs/cgroup/$_" } qw(memory.max memory.swap.max pids.max cpu.max memory/memory.limit_in_bytes
    memory/memory.memsw.limit_in_bytes pids/pids.max cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us))) {
  my ($text, $errno) = slurp($path, 60000);
  tell_of(defined $text ? "file:$path" : "error:$path", defined $text ? $text : $errno);
}
tell_of('id', "$< $> $( $)");
tell_of('pid', $$);

# -- the environment: names only of what is not expected, since a secret must not get into the evidence ---------------
for my $name (sort(keys %{{%ENV, %expected}})) {
  tell_of("variable:$name", !exists $ENV{$name} ? 'absent' : !exists $expected{$name} ? 'unexpected'
    : $ENV{$name} eq $expected{$name} ? 'expected' : 'changed');
}

# -- writing ----------------------------------------------------------------------------------------------------------
my ($mounts) = slurp('/proc/self/mountinfo', 60000);
my %folder = map { $_ => 1 } qw(/ /etc /usr /usr/bin /usr/lib /usr/local /bin /sbin /lib /var /var/tmp /var/lib /run
  /root /home /opt /srv /mnt /media /boot /dev /proc /proc/sys /sys /sys/fs /sys/fs/cgroup /tmp /workspace);
for (split /\n/, defined $mounts ? $mounts : '') {
  my $point = (split / /)[4];
  $point =~ s/\\([0-7]{3})/chr oct $1/ge;
  $folder{$point} = 1;
}
for my $folder (sort keys %folder) {
  next unless -d $folder;
  my $file = "$folder/.patchyard-probe-writes";
  if (sysopen my $new, $file, O_WRONLY | O_CREAT | O_EXCL) { unlink $file; tell_of("write:$folder", 'done') }
  else { tell_of("write:$folder", number()) }
}
for my $path ('/etc/passwd', '/usr/bin/perl', '/etc/hosts', '/etc/hostname', '/etc/resolv.conf', '/proc/sysrq-trigger',
  (map { "/proc/sys/$_" } qw(kernel/core_pattern kernel/hostname kernel/modprobe vm/drop_caches)),
  '/proc/1/mem', '/proc/1/oom_score_adj', '/sys/kernel/uevent_helper', '/sys/power/state', '/dev/kmsg', '/dev/mem',
  glob('/sys/fs/cgroup/{,*/}{release_agent,cgroup.procs,tasks,memory.max,pids.max,memory.limit_in_bytes}')) {
  tell_of("modify:$path", sysopen(my $file, $path, O_WRONLY | O_NONBLOCK) ? 'done' : number());
}
for my $place (grep { m{^/sys/fs/cgroup} } sort keys %folder) {
  opendir my $entries, $place or next;
  my @folders = grep { !/^\.\.?$/ && -d "$place/$_" && !$folder{"$place/$_"} } readdir $entries;
  tell_of("cgroups:$place", join ' ', @folders[0 .. ($#folders < 20 ? $#folders : 20)]);
}
for my $path ('/tmp', '/workspace', '/dev/shm') {
  my ($place, $buffer) = ($path, "\0" x 256);  # a system call is given no constant
  tell_of("space:$path", join ',', (unpack 'q7', $buffer)[1 .. 6]) if syscall($statfs + 0, $place, $buffer) == 0;
}
tell_of('make_device', in_a_child(sub {
  my $path = '/tmp/.patchyard-probe-device';
  return syscall($mknodat + 0, -100, $path, 020600, 0x103) == 0 ? 0 : number();
}, 5));
unlink '/tmp/.patchyard-probe-device';

# -- reading what must not be read ------------------------------------------------------------------------------------
for my $path (qw(/proc/kcore /proc/keys /proc/timer_list /proc/timer_stats /proc/sched_debug /proc/latency_stats
  /proc/1/environ /proc/1/mem /proc/1/maps /proc/kmsg /dev/kmsg /dev/mem)) {
  my ($text, $errno) = slurp($path, 1);
  tell_of("read:$path", defined $text ? length $text ? 'done' : 'empty' : $errno);
}
for my $path (qw(/proc/acpi /proc/asound /proc/scsi /proc/1/fd /proc/1/root /sys/firmware
  /sys/devices/virtual/powercap)) {
  if (opendir my $folder, $path) { tell_of("read:$path", grep({ !/^\.\.?$/ } readdir $folder) ? 'done' : 'empty') }
  else { tell_of("read:$path", number()) }
}

# -- devices and sockets ----------------------------------------------------------------------------------------------
my (@devices, @sockets);
sub look_into {
  my ($folder, $depth) = @_;
  opendir my $entries, $folder or return;
  for my $name (sort readdir $entries) {
    next if $name eq '.' || $name eq '..';
    my $path = $folder eq '/' ? "/$name" : "$folder/$name";
    my ($mode, $device) = (lstat $path)[2, 6];
    next unless defined $mode;
    my $kind = POSIX::S_ISCHR($mode) ? 'c' : POSIX::S_ISBLK($mode) ? 'b' : '';
    push @devices, sprintf '%s %d:%d %s', $kind, $device >> 8 & 0xfff, $device & 0xff | $device >> 12 & 0xfff00, $path
      if $kind;
    push @sockets, $path if -S _;
    next if $path =~ m{^/(proc|sys)$};
    look_into($path, $depth - 1) if $depth && POSIX::S_ISDIR($mode);
  }
}
look_into('/', 2);
look_into('/var/lib', 2);
tell_of('devices', join "\n", @devices[0 .. ($#devices < 500 ? $#devices : 500)]);
tell_of('sockets', join "\n", @sockets[0 .. ($#sockets < 100 ? $#sockets : 100)]);
for my $path (qw(/run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/podman/podman.sock
  /run/crio/crio.sock /run/buildkit/buildkitd.sock), '/var/run/docker/containerd/containerd.sock') {
  socket(my $client, AF_UNIX, SOCK_STREAM, 0) or tell_of("socket:$path", 'none ' . number()), next;
  tell_of("socket:$path", connect($client, pack_sockaddr_un($path)) ? 'done' : number());
}

# -- the network ------------------------------------------------------------------------------------------------------
for my $target (['169.254.169.254', 80], ['192.0.2.1', 80], ['172.17.0.1', 2375], ['10.0.0.1', 22], ['8.8.8.8', 53]) {
  for my $kind (SOCK_STREAM, SOCK_DGRAM) {
    my $name = "connect:$target->[0]:$target->[1]:" . ($kind == SOCK_STREAM ? 'tcp' : 'udp');
    socket(my $client, AF_INET, $kind, 0) or tell_of($name, 'none ' . number()), next;
    fcntl $client, F_SETFL, O_NONBLOCK;
    tell_of($name, connect($client, pack_sockaddr_in($target->[1], inet_aton($target->[0]))) ? 'done' : number());
  }
}
for my $target (['fd00:ec2::254', 'fd000ec2000000000000000000000254'], ['2001:db8::1', '20010db8' . '0' x 23 . '1']) {
  my $name = "connect:[$target->[0]]:80:udp";
  socket(my $client, AF_INET6, SOCK_DGRAM, 0) or tell_of($name, number()), next;
  my $address = pack 'S n N H32 L', AF_INET6, 80, 0, $target->[1], 0;
  tell_of($name, connect($client, $address) ? 'done' : number());
}
tell_of('resolve', in_a_child(sub { return defined gethostbyname('example.org') ? 0 : 1 }, 3));

# -- processes --------------------------------------------------------------------------------------------------------
my @processes;
if (opendir my $proc, '/proc') {
  for my $pid (sort { $a <=> $b } grep { /^\d+$/ } readdir $proc) {
    my ($status) = slurp("/proc/$pid/status", 4096);
    next unless defined $status;
    my ($parent) = $status =~ /^PPid:\t(\d+)/m;
    my ($name) = $status =~ /^Name:\t(.*)/m;
    push @processes, "$pid $parent $name";
  }
  tell_of('processes', join "\n", @processes);
}

# -- becoming somebody, and the system calls --------------------------------------------------------------------------
tell_of('become_root', in_a_child(sub { return POSIX::setuid(0) ? 0 : number() }, 5));
my $another = fork;
if (defined $another && !$another) { sleep 20; POSIX::_exit(0) }
for (@tries) {
  my ($name, $call, @arguments) = split /,/;
  for my $argument (@arguments) {
    $argument = $another if $argument eq '@another';
    $argument += 0 if $argument =~ /^-?\d+$/;
  }
  my $answer = in_a_child(sub {
    my $result = syscall($call + 0, @arguments);
    return $result == -1 ? number() : 0;
  }, 5);
  tell_of("call:$name", $answer);
}
kill 'KILL', $another if $another;
tell_of('end', $told);
"""

_NUMBERS = {"x86_64": {"statfs": 137, "mknodat": 259}, "aarch64": {"statfs": 43, "mknodat": 33}}
_X32 = 0x40000000


def argv(architecture: str) -> tuple[str, ...]:
    """The command that observes. Raises Unfit for an architecture whose system calls we do not know."""
    numbers = _NUMBERS.get(architecture)
    if numbers is None:
        raise Unfit(f"no probes on {architecture}", remedy=f"use an engine on {' or '.join(_NUMBERS)}")
    environment = [part for pair in ENVIRONMENT.items() for part in pair]
    tries = [
        ",".join(map(str, (name, x86_64 if architecture == "x86_64" else aarch64, *arguments)))
        for name, (x86_64, aarch64, arguments) in TRIES.items()
    ]
    if architecture == "x86_64":
        tries.append(f"x32_getpid,{_X32 + 39}")
    return (
        INTERPRETER, "-e", PROGRAM, REPORT, str(numbers["statfs"]), str(numbers["mknodat"]),
        str(len(ENVIRONMENT)), *environment, *tries,
    )  # fmt: skip
