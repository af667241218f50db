"""`patchyard probe`: whether a sandbox here is what it is said to be, with the evidence."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ledger.connect import Database
from ledger.errors import BadInput, LedgerUnavailable, Unfit
from ledger.records.probe import Probe
from patchyard.cli.console import ExitStatus, leave, print_json, print_table, say, table
from patchyard.cli.opened import url_of_ledger
from patchyard.cli.units import seconds_text, time_text
from patchyard.printable import printable
from patchyard.probing import Probed, probe_now
from patchyard.settings import Settings, load_settings


def command(
    image: Annotated[
        str | None, typer.Option("--image", metavar="I", help="A name of the images lock, or a digest.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", metavar="R", help="The OCI runtime; the stack's own by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evidence as JSON.")] = False,
) -> None:
    """Run the isolation probes now and print the evidence: what a sandbox sees and can do, what the engine and the
    kernel say of it, and how it ends when it is attacked from inside.

    Where no stack runs and nothing is asked for, the next backend is probed when one fails. Exits 1 if a check fails
    of the last. Workers of this machine go by what it finds, good or bad.

    Example: patchyard probe --image sandbox-python --json | jq '.checks[] | select(.ok | not)'
    """
    settings = load_settings()
    probed = probe_now(settings, image, runtime, say)
    for failed in probed.before:
        _keep(settings, failed)
    kept = _keep(settings, probed)
    if as_json:
        print_json(_row(probed, kept))
    else:
        _show(probed, kept)
    leave(ExitStatus.NOT_ALL_DONE if probed.failed else ExitStatus.DONE)


def _keep(settings: Settings, probed: Probed) -> Probe | None:
    try:
        with Database(url_of_ledger(settings), name="patchyard probe", pool_max=1) as db:
            return probed.keep(db, settings)
    except Unfit:
        return None  # no stack runs, so no worker waits for it
    except (LedgerUnavailable, BadInput) as refused:
        say(f"patchyard: the evidence was not written into the ledger: {printable(refused.message)}")
        return None


def _row(probed: Probed, kept: Probe | None) -> dict[str, Any]:
    return {
        "image": probed.image.digest,
        "image_name": probed.image.name,
        "backend": probed.subject.backend,
        "runtime": probed.subject.runtime,
        "host": probed.subject.host,
        "ok": not probed.failed,
        "took_ms": probed.took_ms,
        "probe_id": kept.id if kept else None,
        "expires_at": kept.expires_at.isoformat() if kept else None,
        "checks": [check.plain() for check in probed.checks],
        "versions": dict(probed.versions),
        "warnings": probed.warnings,
        "tried": [{"name": tried.name, "why": tried.why} for tried in probed.tried],
    }


def _show(probed: Probed, kept: Probe | None) -> None:
    host = probed.subject.host
    for tried in probed.tried:
        print(f"not      {tried.name}: {printable(tried.why)}")
    print(f"image    {probed.image.name} {probed.image.digest}")
    print(f"backend  {probed.subject.backend} {host['engine']} at {host['address']}")
    print(f"runtime  {probed.subject.runtime} {host['runtime']}")
    versions = (f"{name} {version or 'unknown'}" for name, version in probed.versions.items())
    print(f"versions {', '.join(versions)}")
    print(f"host     kernel {host['kernel']} {host['architecture']}, cgroup v{host['cgroups']}, boot {host['boot']}")
    print()
    rows = ((check.name, "ok" if check.ok else "FAILED", printable(check.evidence)) for check in probed.checks)
    print_table(table("check", "", "evidence", rows=rows))
    for warning in probed.warnings:
        print(f"warning: {printable(warning)}")
    print()
    took = seconds_text(probed.took_ms / 1000)
    if probed.failed:
        names = ", ".join(check.name for check in probed.failed)
        print(f"{len(probed.failed)} of {len(probed.checks)} checks failed in {took}: {names}")
        print("no job's command runs in such a sandbox")
    else:
        until = f"; probe {kept.id} allows sandboxes until {time_text(kept.expires_at)}" if kept else ""
        print(f"all {len(probed.checks)} checks passed in {took}{until}")
