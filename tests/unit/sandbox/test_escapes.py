"""Which versions are warned of, and what a distribution's package has to do with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runners.sandbox.escapes import KNOWN, Package, known_escapes, package_here, warnings

OF_2025 = ["CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"]


@pytest.mark.parametrize(
    ("program", "version", "cves"),
    [
        ("runc", "1.1.5+ds1", ["CVE-2024-21626", "CVE-2024-45310", *OF_2025]),
        ("runc", "1.1.12", ["CVE-2024-45310", *OF_2025]),
        ("runc", "v1.1.14", OF_2025),
        ("runc", "1.2.0-rc.3", OF_2025),
        ("runc", "1.2.7", OF_2025),
        ("runc", "1.2.8", []),
        ("runc", "1.3.2", OF_2025),
        ("runc", "1.3.3", []),
        ("runc", "1.4.0-rc.2", OF_2025),
        ("runc", "1.4.0-rc.3", []),
        ("runc", "1.4.0", []),
        ("runc", "2.0", []),
        ("crun", "1.8.1", ["CVE-2025-24965"]),
        ("crun", "1.20", []),
        ("containerd", "2.1.0", ["CVE-2025-47290"]),
        ("containerd", "2.0.5", []),
        ("containerd", "1.6.20~ds1", []),
        ("containerd", "1.5.9", ["CVE-2022-23648"]),
        ("docker", "20.10.24+dfsg1", []),
        ("docker", "19.03.1", ["CVE-2021-41091"]),
        ("runsc", "release-20221107.0", []),
        ("runc", "", []),
    ],
)
def test_a_version_has_the_holes_that_were_fixed_after_it(program: str, version: str, cves: list[str]) -> None:
    assert [one.cve for one in known_escapes(program, version)] == cves


def test_the_table_is_well_formed() -> None:
    assert all(re.fullmatch(r"CVE-\d{4}-\d{4,7}", one.cve) and one.fixed and one.what for one in KNOWN)
    assert len({(one.program, one.cve) for one in KNOWN}) == len(KNOWN)
    assert all(not known_escapes(one.program, fix) or one not in known_escapes(one.program, fix)
               for one in KNOWN for fix in one.fixed)  # fmt: skip


def test_a_package_that_names_the_fix_is_not_warned_of() -> None:
    named = frozenset({"CVE-2024-21626", "CVE-2024-45310", *OF_2025[:2]})
    [line] = warnings({"runc": "1.1.5+ds1"}, lambda _: Package("runc", "1.1.5+ds1-1+deb12u1", named))
    assert line.startswith("runc 1.1.5+ds1: CVE-2025-52881 by its version, ")
    assert "fixed in 1.2.8 or 1.3.3 or 1.4.0-rc3" in line
    assert line.endswith("Package runc 1.1.5+ds1-1+deb12u1 does not name the fix in its changelog")
    assert list(warnings({"runc": "1.1.5"}, lambda _: Package("runc", "1:1.1.5-2", named | set(OF_2025)))) == []
    other = warnings({"runc": "1.1.4"}, lambda _: Package("runc", "1.1.5-2", named | set(OF_2025)))
    assert len(list(other)) == 5, "a program of another version is not the package's"


def test_what_is_not_known_is_said() -> None:
    assert all("may have the fix under an older number" in line for line in warnings({"crun": "1.8.1"}))
    [line] = warnings({"crun": "1.8.1"}, lambda _: Package("crun", "1.8.1-1", None))
    assert line.endswith("may have the fix; its changelog is not here")
    [line] = warnings({"runsc": "release-20221107.0"})
    assert line == "runsc: its version (release-20221107.0) cannot be compared with those that have known holes"
    [line] = warnings({"runc": ""})
    assert "(unknown)" in line


@pytest.mark.skipif(not Path("/var/lib/dpkg/info/runc.list").exists(), reason="runc is no package here")
def test_the_package_of_a_program_is_found_with_what_it_fixed() -> None:
    package = package_here("runc")
    assert package is not None
    assert package.name == "runc"
    assert package.named is None or "CVE-2021-30465" in package.named
    assert package_here("no-such-program") is None
