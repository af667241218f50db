"""What is around a command: networks, other processes, sockets of engines, variables."""

from __future__ import annotations

from runners.sandbox import wrapper
from runners.sandbox.probe.program import FIRST_PROCESS
from runners.sandbox.probe.seen import Asked, Judge, NotObserved, Seen, answer, few

UNREACHABLE = ("101", "99", "97", "100", "none 97", "none 1")
"""ENETUNREACH, EADDRNOTAVAIL, EAFNOSUPPORT, ENETDOWN; and no socket of that family to be had at all."""
_METADATA = ("169.254.169.254", "[fd00:ec2::254]")
_LISTENS = "0A"
_NO_FILE = ("2", "20")  # ENOENT, ENOTDIR


def interfaces(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """None but the loopback."""
    found = interfaces_of(seen.file("/proc/net/dev"))
    return set(found) <= {"lo"}, f"interfaces: {few(found) or 'none'}"


def interfaces_of(text: str) -> list[str]:
    """The names in a file /proc/net/dev. Raises NotObserved for a file that is none."""
    lines = text.splitlines()
    if len(lines) < 2 or "Receive" not in lines[0]:
        raise NotObserved("not a list of interfaces")
    return [line.partition(":")[0].strip() for line in lines[2:]]


def routes(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """No route leads anywhere."""
    found = routes_of(seen.file("/proc/net/route"))
    if "error:/proc/net/ipv6_route" not in seen:
        lines = [line.split() for line in seen.file("/proc/net/ipv6_route").splitlines()]
        found += [f"{line[0]}/{line[1]} by {line[9]}" for line in lines if line[9] != "lo"]
    return not found, few(found) or "none"


def routes_of(text: str) -> list[str]:
    """The routes in a file /proc/net/route. Raises NotObserved for a file that is none."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Iface"):
        raise NotObserved("not a list of routes")
    rows = [line.split() for line in lines[1:] if line.strip()]
    return [f"{row[1]} by {row[0]}" for row in rows if row[0] != "lo"]


def listeners(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Nobody listens on the loopback: it is the sandbox's own."""
    lines = seen.file("/proc/net/tcp").splitlines()[1:]
    if "error:/proc/net/tcp6" not in seen:
        lines += seen.file("/proc/net/tcp6").splitlines()[1:]
    found = [row[1] for row in (line.split() for line in lines) if row[3] == _LISTENS]
    return not found, few(found) or "none"


def metadata(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The addresses at which clouds hand out credentials are unreachable."""
    tried = {name: said for name, said in seen.below("connect").items() if name.startswith(_METADATA)}
    return _all_unreachable(tried, least=3)


def addresses(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Addresses of the internet, of private networks and of an engine's bridge are unreachable."""
    tried = {name: said for name, said in seen.below("connect").items() if not name.startswith(_METADATA)}
    return _all_unreachable(tried, least=9)


def _all_unreachable(tried: dict[str, str], *, least: int) -> tuple[bool, str]:
    if len(tried) < least:
        return False, f"only {len(tried)} of {least} were tried"
    reached = [f"{name} {answer(said)}" for name, said in tried.items() if said not in UNREACHABLE]
    return not reached, few(reached) or f"{', '.join(tried)}: {', '.join(sorted({answer(v) for v in tried.values()}))}"


def resolver(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """A name is not resolved, and no server of names is known."""
    known = "" if "error:/etc/resolv.conf" in seen else seen.file("/etc/resolv.conf")
    servers = [words[1] for words in map(str.split, known.splitlines()) if words[:1] == ["nameserver"] and words[1:]]
    outside = [server for server in servers if not server.startswith("127.") and server != "::1"]
    said = seen["resolve"]
    if outside:
        return False, f"servers of names: {few(outside)}"
    return said == "1", "example.org is not resolved" if said == "1" else f"example.org: {answer(said)}"


def engine_sockets(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """No socket of an engine is there, nor any other."""
    tried = seen.below("socket")
    there = [f"{path} {answer(said)}" for path, said in tried.items() if said not in _NO_FILE]
    there += [path for path in seen["sockets"].splitlines() if path not in tried]
    if len(tried) < 5:
        return False, f"only {len(tried)} were tried"
    return not there, few(there) or f"none of {', '.join(tried)}"


def environment(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """The variables are those that every sandbox has, with their values, and no other. What another one holds is
    never told."""
    found = seen.below("variable")
    wrong = [f"{name} is {said}" for name, said in sorted(found.items()) if said != "expected"]
    wrong += [f"{name} was not looked for" for name in wrapper.ENVIRONMENT if name not in found]
    return not wrong, few(wrong) or ", ".join(sorted(found))


def own_processes(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """All processes to be seen descend from the sandbox's own first process."""
    rows = [line.split(" ", 2) for line in seen["processes"].splitlines()]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}
    me = int(seen["pid"])
    foreign = [f"{pid} {name}" for pid, _, name in rows if not _descends(int(pid), parents)]
    first = seen.file("/proc/1/cmdline")
    if not first.startswith(f"{FIRST_PROCESS}\0"):
        return False, f"process 1 is {first.split(chr(0))[0]!r}"
    if me not in parents or 1 not in parents:
        return False, "the processes seen are not those of this sandbox"
    return not foreign, few(foreign) or f"process 1 is ours, and the {len(rows)} to be seen descend from it"


def _descends(pid: int, parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid != 1:
        if pid in seen or pid not in parents:
            return False
        seen.add(pid)
        pid = parents[pid]
    return parents[1] == 0


def user_namespace(seen: Seen, asked: Asked) -> tuple[bool, str]:
    """Whether root inside would be root outside. It is reported and not demanded: nobody inside can become root."""
    rows = [line.split() for line in seen.file("/proc/self/uid_map").splitlines()]
    if not rows or any(len(row) != 3 for row in rows):
        raise NotObserved("not a map of users")
    if rows == [["0", "0", "4294967295"]]:
        return True, "the host's own user namespace"
    return True, "a user namespace of its own: " + "; ".join(f"{row[2]} from {row[0]} at {row[1]}" for row in rows)


CHECKS: dict[str, Judge] = {
    "network.interfaces": interfaces,
    "network.routes": routes,
    "network.listeners": listeners,
    "network.metadata": metadata,
    "network.addresses": addresses,
    "network.resolver": resolver,
    "surroundings.engine_sockets": engine_sockets,
    "surroundings.environment": environment,
    "processes.own_only": own_processes,
    "processes.user_namespace": user_namespace,
}
