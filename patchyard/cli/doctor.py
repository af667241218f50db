"""`patchyard doctor`: what this machine has and lacks, and where each setting comes from. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from ledger.errors import PatchyardError
from ledger.probes import latest_probes
from ledger.stored import stored_bytes
from patchyard.cli.console import ExitStatus, leave, print_json, print_table, table
from patchyard.cli.opened import opened_ledger
from patchyard.cli.units import time_text
from patchyard.image_shelf import locked_images
from patchyard.local.fitness import SANDBOX_IMAGE, Finding, State, examine, is_fit
from patchyard.settings import Settings, load_settings, show_settings
from runners.disk import shown_bytes
from runners.sandbox.probe import boot_id


def command(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> None:
    """What this machine has and lacks for the work, each with the remedy, and every setting with its source.

    Exits 3 if jobs cannot run here. Secrets are masked.

    Example: [bold]patchyard doctor --json | jq '.findings[] | select(.state != "ok")'[/bold]
    """
    settings = load_settings()
    findings = [*examine(settings), *_ledger_size(settings), *_isolation(settings)]
    shown = show_settings(settings)
    if as_json:
        print_json(
            {
                "fit": is_fit(findings),
                "findings": [finding.plain() for finding in findings],
                "settings": [asdict(setting) for setting in shown],
            }
        )
    else:
        rows = [(finding.subject, finding.state, finding.found, finding.remedy) for finding in findings]
        print_table(table("subject", "state", "found", "remedy", rows=rows))
        print()
        print_table(table("setting", "value", "source", rows=[(item.name, item.value, item.source) for item in shown]))
    if not is_fit(findings):
        leave(ExitStatus.UNFIT)


def _ledger_size(settings: Settings) -> Iterator[Finding]:
    """What the ledger takes, where it answers, and which tables most of it."""
    try:
        with opened_ledger(settings) as db:
            sizes = stored_bytes(db)
    except PatchyardError:
        return  # whether it answers is another finding
    most = ", ".join(f"{name} {shown_bytes(size)}" for name, size in list(sizes.items())[:3])
    yield Finding("ledger size", "ok", f"{shown_bytes(sum(sizes.values()))}: {most}")


def _isolation(settings: Settings) -> Iterator[Finding]:
    """What the last probe of the usual image found on this machine, since it was started, by each backend."""
    try:
        entry = locked_images(settings).get(SANDBOX_IMAGE)
        with opened_ledger(settings) as db:
            found = latest_probes(db, image=entry.digest) if entry is not None else []
    except PatchyardError as error:
        yield Finding("isolation", "note", f"no probe is known: {error.message}", "patchyard probe")
        return
    here = [probe for probe in found if probe.host.get("boot") == boot_id()]
    if not here or (here[0].ok and here[0].expired):
        what = f"the probe of {time_text(here[0].probed_at)} has run out" if here else f"{SANDBOX_IMAGE} was not probed"
        yield Finding("isolation", "note", f"{what}; the first job does it", "patchyard probe")
        return
    good = next((probe for probe in here if probe.ok and not probe.expired), None)
    for probe in {(one.backend, one.runtime): one for one in reversed(here)}.values():
        where = f"{SANDBOX_IMAGE} on {probe.backend}/{probe.runtime}, {time_text(probe.probed_at)}"
        if probe is good:
            what = f"{where}: {len(probe.checks)} checks passed, good until {time_text(probe.expires_at)}"
            yield Finding("isolation", "ok", what)
        elif not probe.ok:
            # What was probed last is what would be used.
            state: State = "missing" if probe is here[0] else "note"
            yield Finding("isolation", state, f"{where}: failed {', '.join(probe.failed)}", "patchyard probe")
