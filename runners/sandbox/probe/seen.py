"""What was observed inside of a sandbox, read without trust: a report that is not whole is no report.

What a check needs and does not find is `NotObserved`, and that is a failed check: silence proves nothing.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ledger.errors import Permanent
from ledger.records.probe import MAX_EVIDENCE_CHARACTERS, Check
from runners.sandbox.spec import EngineFacts, SandboxSpec

_OCTAL = re.compile(r"\\([0-7]{3})")


class NotObserved(Permanent):
    """Nothing was observed where something had to be."""


@dataclass(frozen=True)
class Asked:
    """What the observed sandbox should be: what was asked for, and what it runs on."""

    spec: SandboxSpec
    facts: EngineFacts


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo, see proc(5). `root` is what of the file system is mounted."""

    root: str
    point: str
    options: frozenset[str]
    kind: str
    settings: frozenset[str]


class Seen:
    """Observations by name. Every look-up raises NotObserved where there is nothing."""

    def __init__(self, told: Mapping[str, str]) -> None:
        self._told = told

    def __getitem__(self, name: str) -> str:
        try:
            return self._told[name]
        except KeyError:
            raise NotObserved(f"not observed: {name}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._told

    def below(self, kind: str) -> dict[str, str]:
        """All observations of a kind, by what they are of."""
        found = {
            name.removeprefix(f"{kind}:"): told for name, told in self._told.items() if name.startswith(f"{kind}:")
        }
        if not found:
            raise NotObserved(f"not observed: any {kind}")
        return found

    def file(self, path: str) -> str:
        """The content of a file."""
        return self[f"file:{path}"]

    def status(self, pid: str = "self") -> dict[str, str]:
        """/proc/PID/status by its keys."""
        return status_of(self.file(f"/proc/{pid}/status"))

    def mounts(self) -> list[Mount]:
        """Every mount that the sandbox has."""
        return mounts_of(self.file("/proc/self/mountinfo"))


def status_of(text: str) -> dict[str, str]:
    """A status file of /proc by its keys."""
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def mounts_of(text: str) -> list[Mount]:
    """A mountinfo file. Raises NotObserved for one that is none."""
    return [_mount(line) for line in text.splitlines()]


def _mount(line: str) -> Mount:
    before, separator, after = line.partition(" - ")
    fields, ends = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or len(ends) < 3:
        raise NotObserved(f"not a mount: {line[:100]!r}")
    return Mount(
        root=_plain(fields[3]),
        point=_plain(fields[4]),
        options=frozenset(fields[5].split(",")),
        kind=ends[0],
        settings=frozenset(ends[2].split(",")),
    )


def _plain(escaped: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped)


def read_report(data: bytes) -> Seen:
    """The observations of a report. One that is cut short, or has been added to, has none."""
    told: dict[str, str] = {}
    lines = data.splitlines()
    for line in lines:
        try:
            one = json.loads(line)
            name, value = one["name"], one["value"]
        except (ValueError, TypeError, KeyError):
            return Seen({})
        if name in told or not isinstance(name, str) or not isinstance(value, str):
            return Seen({})
        told[name] = value
    whole = len(lines) > 0 and told.get("end") == str(len(lines) - 1)
    return Seen(told if whole else {})


class Unseen(Check):
    """A check that failed for want of an observation, and not for what was observed."""


Judge = Callable[[Seen, Asked], tuple[bool, str]]
"""Whether a promise is kept, and the evidence. It raises NotObserved for what it needs and does not have."""


def judged(judges: Mapping[str, Judge], seen: Seen, asked: Asked) -> list[Check]:
    """One check a judge. What cannot be read counts as not observed."""
    return [judged_one(name, partial(judge, seen, asked)) for name, judge in judges.items()]


def judged_one(name: str, judge: Callable[[], tuple[bool, str]]) -> Check:
    """One check; evidence is cut to what the ledger keeps of it."""
    kind = Check
    try:
        ok, evidence = judge()
    except NotObserved as missing:
        kind, ok, evidence = Unseen, False, missing.message
    except (ValueError, KeyError, IndexError) as strange:
        ok, evidence = False, f"what was observed cannot be read ({type(strange).__name__}: {strange})"
    return kind(name=name, ok=ok, evidence=" ".join(evidence.split())[:MAX_EVIDENCE_CHARACTERS])


def answer(value: str) -> str:
    """An answer of the kernel's in words: `done`, an errno by its name, or how it ended."""
    return errno.errorcode.get(int(value), value) if value.isdigit() else value


def few(names: list[str] | tuple[str, ...], most: int = 8) -> str:
    """Some names, and how many more."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
