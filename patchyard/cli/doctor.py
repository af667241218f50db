"""`patchyard doctor`: what this machine has and lacks, and where each setting comes from. It changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from patchyard.cli.console import ExitStatus, leave, print_json, print_table, table
from patchyard.local.fitness import examine, is_fit
from patchyard.settings import load_settings, show_settings


def command(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> None:
    """What this machine has and lacks for the work, each with the remedy, and every setting with its source.

    Exits 3 if jobs cannot run here. Secrets are masked.

    Example: [bold]patchyard doctor --json | jq '.findings[] | select(.state != "ok")'[/bold]
    """
    settings = load_settings()
    findings = examine(settings)
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
