"""Who a command is, what it may ask of the kernel, and how much it may take: judged from what it observed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from runners.sandbox.bounds import GID, UID, resource_limits
from runners.sandbox.probe.program import TRIES
from runners.sandbox.probe.seen import Asked, Judge, NotObserved, Seen, answer

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
REFUSALS = ("1", "38", "signal 31")
"""EPERM, ENOSYS, and the death of who tries."""
_PROC_LIMITS = {
    "nofile": "Max open files",
    "fsize": "Max file size",
    "core": "Max core file size",
    "memlock": "Max locked memory",
    "msgqueue": "Max msgqueue size",
}
_NO_LIMIT = 1 << 60


def user(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """All four uids and all four gids are the sandbox's."""
    status = seen.status()
    found = {name: status[name].split() for name in ("Uid", "Gid")}
    ok = found == {"Uid": [str(UID)] * 4, "Gid": [str(GID)] * 4}
    return ok, f"uid {' '.join(found['Uid'])}, gid {' '.join(found['Gid'])}"


def groups(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """No group but its own."""
    found = seen.status()["Groups"].split()
    return set(found) <= {str(GID)}, f"groups {' '.join(found) or 'none'}"


def no_way_to_root(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """setuid(0) is refused."""
    said = seen["become_root"]
    return said == "1", f"setuid(0): {answer(said)}"


def capabilities(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Every set is empty, of the command and of the first process."""
    found = {f"{pid} {name}": int(seen.status(pid)[name], 16) for pid in ("self", "1") for name in CAPABILITY_SETS}
    held = [f"{name} {value:x}" for name, value in found.items() if value]
    return not held, ", ".join(held) or f"{', '.join(CAPABILITY_SETS)}: 0"


def no_new_privileges(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Set-user-id programs give nothing, of the command and of the first process."""
    found = [seen.status(pid)["NoNewPrivs"] for pid in ("self", "1")]
    return found == ["1", "1"], f"NoNewPrivs {' '.join(found)}"


def filtered(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """A filter of system calls is in place (mode 2), of the command and of the first process."""
    found = [seen.status(pid)["Seccomp"] for pid in ("self", "1")]
    return found == ["2", "2"], f"Seccomp {' '.join(found)}"


def memory(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The cgroup's limit is what was asked for."""
    limit = asked.spec.limits.memory_bytes
    found = _number(_either(seen, "memory/memory.limit_in_bytes", "memory.max"))
    return found == limit, f"{_shown(found)} of memory, {limit} asked for"


def swap(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Memory and swap together are not more than memory alone, or there is no swap to be had."""
    limit = asked.spec.limits.memory_bytes
    if len(seen.file("/proc/swaps").splitlines()) == 1:
        return True, "the machine has no swap"
    try:
        found = _number(_either(seen, "memory/memory.memsw.limit_in_bytes", "memory.swap.max"))
    except NotObserved:
        return False, "the machine has swap, and the kernel does not limit it"
    extra = found - limit if "file:/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes" in seen else found
    return extra == 0, f"{_shown(extra)} bytes of swap"


def processes(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The cgroup's limit is what was asked for."""
    found = _number(_either(seen, "pids/pids.max", "pids.max"))
    return found == asked.spec.limits.pids, f"{_shown(found)} processes, {asked.spec.limits.pids} asked for"


def processors(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The cgroup's quota is what was asked for."""
    folder = "/sys/fs/cgroup/cpu"
    if f"file:{folder}/cpu.cfs_quota_us" in seen:
        quota, period = seen.file(f"{folder}/cpu.cfs_quota_us"), seen.file(f"{folder}/cpu.cfs_period_us")
    else:
        quota, period = seen.file("/sys/fs/cgroup/cpu.max").split()
    found = _number(quota) / int(period)
    ok = 0 < found <= asked.spec.limits.cpus * 1.001
    return ok, f"{quota.strip()} of {period.strip()} microseconds, {asked.spec.limits.cpus:g} processors asked for"


def per_process(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Open files, file size, core dumps and locked memory, soft and hard."""
    found = limits_of(seen.file("/proc/self/limits"))
    wanted = {
        _PROC_LIMITS[name]: (str(value), str(value)) for name, value in resource_limits(asked.spec.limits).items()
    }
    wrong = [f"{name} {'/'.join(found[name])}" for name, value in wanted.items() if found[name] != value]
    return not wrong, ", ".join(wrong) or ", ".join(f"{name} {value}" for name, (value, _) in wanted.items())


def limits_of(text: str) -> dict[str, tuple[str, str]]:
    """A limits file of /proc: soft and hard by name."""
    lines = text.splitlines()
    if not lines or "Soft Limit" not in lines[0]:
        raise NotObserved("not a file of limits")
    soft, hard = lines[0].index("Soft Limit"), lines[0].index("Hard Limit")
    units = lines[0].index("Units")
    return {line[:soft].strip(): (line[soft:hard].strip(), line[hard:units].strip()) for line in lines[1:]}


def counter(text: str, name: str) -> int | None:
    """The number after `name` in a flat-keyed cgroup file, or None."""
    for key, value in pairwise(text.split()):
        if key == name and value.isdigit():
            return int(value)
    return None


def _refused(call: str) -> Judge:
    def judge(seen: Seen, asked: Asked) -> tuple[bool, str]:
        said = seen[f"call:{call}"]
        return said in REFUSALS, answer(said)

    return judge


def _other_abi(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Calls by the numbers of another ABI would go past a filter that knows ours only."""
    if asked.facts.architecture != "x86_64":
        return True, f"{asked.facts.architecture} has none"
    return _refused("x32_getpid")(seen, asked)


def _either(seen: Seen, first_version: str, second_version: str) -> str:
    """What a cgroup file holds, in the place that version 1 or version 2 has it in."""
    path = f"/sys/fs/cgroup/{first_version}"
    return seen.file(path) if f"file:{path}" in seen else seen.file(f"/sys/fs/cgroup/{second_version}")


def _number(text: str) -> int:
    return _NO_LIMIT if text.strip() in ("max", "-1") else int(text)


def _shown(number: int) -> str:
    return "any number" if number >= _NO_LIMIT else str(number)


def _system_calls() -> dict[str, Callable[[Seen, Asked], tuple[bool, str]]]:
    return {f"calls.{call}": _refused(call) for call in TRIES} | {"calls.other_abi": _other_abi}


CHECKS: dict[str, Judge] = {
    "identity.user": user,
    "identity.groups": groups,
    "identity.no_way_to_root": no_way_to_root,
    "identity.capabilities": capabilities,
    "identity.no_new_privileges": no_new_privileges,
    "calls.filtered": filtered,
    **_system_calls(),
    "limits.memory": memory,
    "limits.swap": swap,
    "limits.processes": processes,
    "limits.processors": processors,
    "limits.per_process": per_process,
}
