"""`patchyard doctor` on a ledger."""

from __future__ import annotations

import re


def test_the_ledgers_size_is_shown(patchyard, ledger):
    findings = patchyard("doctor", "--json").json["findings"]
    [size] = [finding for finding in findings if finding["subject"] == "ledger size"]
    assert re.fullmatch(r"\d+\.\d [MG]B: (\w+ \d+\.\d [MG]B(, )?){3}", size["found"])
