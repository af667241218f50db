"""What of a file system a command sees and can change, devices and the kernel's own files included."""

from __future__ import annotations

from policy.ceilings import KIB
from runners.sandbox import wrapper
from runners.sandbox.bounds import TMP, file_systems, shared_memory_bytes
from runners.sandbox.probe.seen import Asked, Judge, Mount, Seen, answer, few

SHARED_MEMORY = "/dev/shm"  # noqa: S108  (a path inside the sandbox)
WRITABLE = (wrapper.WORKSPACE, TMP, SHARED_MEMORY)
_QUEUES = "/dev/mqueue"
COVER_BYTES = 64 * KIB
"""An image's volume is covered by an empty file system of this size: writable, and nothing of a host."""
_OURS = {"/proc": "proc", "/dev": "tmpfs", "/dev/pts": "devpts", _QUEUES: "mqueue", "/sys": "sysfs"}
_ENGINES_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
_DEVICES = {
    "/dev/null": "1:3", "/dev/zero": "1:5", "/dev/full": "1:7", "/dev/random": "1:8", "/dev/urandom": "1:9",
    "/dev/tty": "5:0", "/dev/console": "5:1", "/dev/ptmx": "5:2", "/dev/pts/ptmx": "5:2",
}  # fmt: skip
_FIRST_PROCESS = ("/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/fd", "/proc/1/root")
_MUST_BE_TRIED = ("/", "/etc", "/usr", "/usr/bin", "/var", "/run", "/root", "/proc", "/sys", "/dev", *WRITABLE)


def root(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The root is mounted read-only, and a file cannot be made in it."""
    mounted = [mount for mount in seen.mounts() if mount.point == "/"]
    said = seen["write:/"]
    ok = len(mounted) > 0 and "ro" in mounted[-1].options and said != "done"
    return ok, f"mounted {'read-only' if ok else 'writable'}; a file in /: {answer(said)}"


def writable(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """A file can be made in the workspace, in /tmp and in shared memory, and nowhere else."""
    tried = seen.below("write")
    covered = {mount.point for mount in seen.mounts() if _is_cover(mount)}
    written = {place for place, said in tried.items() if not said.isdigit()}
    untried = [place for place in _MUST_BE_TRIED if place not in tried]
    more = sorted(written - {*WRITABLE, _QUEUES} - covered)
    less = [place for place in (wrapper.WORKSPACE, TMP) if place not in written]
    if more or less or untried:
        return False, f"written: {few(more)}; not written: {few(less)}; not tried: {few(untried)}"
    return True, f"of {len(tried)} places: {', '.join(sorted(written))}"


def sizes(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The writable places have the size that was asked for, in bytes and, but for shared memory, in files."""
    bounded = file_systems(asked.spec.limits)
    found = {path: _space(seen[f"space:{path}"]) for path in WRITABLE}
    ok = found[SHARED_MEMORY][0] == shared_memory_bytes(asked.spec.limits)
    ok = ok and all(found[path] == (one.size_bytes, one.inodes) for path, one in bounded.items())
    return ok, ", ".join(f"{path} {size} bytes, {files} files" for path, (size, files) in found.items())


def options(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The writable places are file systems in memory without devices and set-user-id programs."""
    by_point = {mount.point: mount for mount in seen.mounts()}
    said = []
    ok = True
    for place in WRITABLE:
        mount = by_point.get(place)
        ok = ok and mount is not None and mount.kind == "tmpfs" and {"nosuid", "nodev"} <= mount.options
        said.append(f"{place} {mount.kind} {','.join(sorted(mount.options))}" if mount else f"{place} not mounted")
    return ok, "; ".join(said)


def mounts(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Nothing is mounted but what a sandbox has; above all, nothing of the host."""
    found = seen.mounts()
    strange = [f"{mount.point} ({mount.kind} {mount.root})" for mount in found if not is_known(mount)]
    return not strange, few(strange) or f"{len(found)} mounts, each accounted for"


def is_known(mount: Mount) -> bool:
    """Whether a sandbox has such a mount."""
    point = mount.point
    if point == "/":
        return True
    if point in _OURS:
        return mount.kind == _OURS[point] and mount.root == "/"
    if point in WRITABLE:
        return mount.kind == "tmpfs" and mount.root == "/"
    if point.startswith("/sys/fs/cgroup"):
        return mount.kind in ("cgroup", "cgroup2", "tmpfs")
    if point.startswith(("/proc/", "/sys/")):
        return _is_mask(mount)
    if point in _ENGINES_FILES:
        return "ro" in mount.options
    if point in _DEVICES:  # a runtime that may not make a device mounts the host's: the same device
        return mount.kind in ("devtmpfs", "tmpfs") and mount.root == f"/{point.removeprefix('/dev/')}"
    return _is_cover(mount)


def _is_mask(mount: Mount) -> bool:
    """Something laid over a file of the kernel's: nothing, an empty read-only folder, or the same, read-only."""
    return mount.root == "/null" or ("ro" in mount.options and mount.kind in ("tmpfs", "proc", "sysfs"))


def _is_cover(mount: Mount) -> bool:
    size = f"size={COVER_BYTES // KIB}k"
    return mount.kind == "tmpfs" and {"nosuid", "nodev"} <= mount.options and size in mount.settings


def modified(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """No file of the system, of the kernel's settings or of its own limits can be opened for writing."""
    tried = seen.below("modify")
    opened = sorted(path for path, said in tried.items() if not said.isdigit())
    return not opened and len(tried) >= 15, few(opened) or f"none of {len(tried)} could be opened for writing"


def settings(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The kernel's settings and the cgroups are mounted read-only."""
    found = seen.mounts()
    by_point = {mount.point: mount.options for mount in found}
    places = ["/proc/sys", "/sys", *(mount.point for mount in found if mount.kind in ("cgroup", "cgroup2"))]
    wrong = [place for place in places if "ro" not in by_point.get(place, ())]
    return not wrong, f"not read-only: {few(wrong)}" if wrong else f"{len(places)} places, read-only"


def own_cgroups(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Of the machine's tree of cgroups, with the names of all that runs on it, the sandbox's own alone is seen."""
    found = seen.below("cgroups")
    others = [f"{place}: {names}" for place, names in found.items() if names]
    return not others, few(others, 3) or f"{len(found)} places, with no other's cgroup below"


def masked(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """What the kernel tells of itself and of its keys is not to be read."""
    tried = {path: said for path, said in seen.below("read").items() if path not in _FIRST_PROCESS}
    readable = sorted(path for path, said in tried.items() if said != "empty" and not said.isdigit())
    return not readable and "/proc/keys" in tried and "/proc/kcore" in tried, few(readable) or (
        ", ".join(f"{path} {answer(said)}" for path, said in list(tried.items())[:6])
    )


def first_process(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Memory, environment, files and root of the sandbox's first process are out of reach."""
    said = {path: seen[f"read:{path}"] for path in _FIRST_PROCESS} | {"write": seen["modify:/proc/1/mem"]}
    reached = [path for path, value in said.items() if value not in ("1", "13")]
    return not reached, few(reached) or f"{', '.join(said)}: {answer(said['/proc/1/mem'])}"


def devices(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """No device but those without a machine behind them."""
    lines = [line.split(" ", 2) for line in seen["devices"].splitlines()]
    strange = [f"{kind} {number} {path}" for kind, number, path in lines if kind != "c" or not _is_plain(path, number)]
    present = {path for _, _, path in lines}
    missing = [path for path in ("/dev/null", "/dev/urandom") if path not in present]
    if missing:
        return False, f"not even {few(missing)} was found"
    return not strange, few(strange) or few([path for _, _, path in lines], 12)


def _is_plain(path: str, number: str) -> bool:
    return _DEVICES.get(path) == number or (path.startswith("/dev/pts/") and number.startswith("136:"))


def make_device(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """A device cannot be made."""
    said = seen["make_device"]
    return said in ("1", "38"), f"mknod: {answer(said)}"


def _space(told: str) -> tuple[int, int]:
    """Bytes and files, of what statfs says: block size, blocks, free, available, inodes, free inodes."""
    size, blocks, _, _, files, _ = (int(number) for number in told.split(","))
    return size * blocks, files


CHECKS: dict[str, Judge] = {
    "files.root_read_only": root,
    "files.writable_places": writable,
    "files.sizes": sizes,
    "files.options": options,
    "files.mounts": mounts,
    "files.unmodified": modified,
    "kernel_files.read_only": settings,
    "kernel_files.masked": masked,
    "kernel_files.own_cgroups": own_cgroups,
    "processes.first_out_of_reach": first_process,
    "devices.harmless": devices,
    "devices.none_made": make_device,
}
