"""The monkey, for as long as it is told: a minute in the suite, longer by `python -m tests.chaos`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.monkey import MINUTES, RESULTS, SCHEDULERS, SEED, WORKERS, Monkey
from tests.chaos.proxy import proxy_to
from tests.chaos.report import Report
from tests.chaos.yard import open_yard

_AROUND_SECONDS = 1_500
"""For everything before the first fault and after the last one."""

pytestmark = [pytest.mark.engine, pytest.mark.timeout(60 * float(os.environ.get(MINUTES, 1)) + _AROUND_SECONDS)]


def test_whatever_is_done_to_it_every_job_ends_as_it_should(engine_host: str, sandbox_image: str) -> None:
    minutes, seed = float(os.environ.get(MINUTES, 1)), int(os.environ.get(SEED, 20))
    print(f"\nchaos: seed {seed}, {minutes:g} minutes")
    with open_yard(engine_host, sandbox_image) as yard, proxy_to(yard.postgres.url) as wire:
        for name in SCHEDULERS:
            yard.scheduler(name, PATCHYARD_DATABASE_URL=wire.url)
        for name in WORKERS:
            yard.worker(name.partition("-")[0], name, PATCHYARD_DATABASE_URL=wire.url)
        yard.crew.ready()
        yard.learn()
        monkey = Monkey(yard, wire, seed)
        monkey.run(minutes * 60)
        findings = yard.violations(monkey.refs, retried=monkey.retried)
        findings += yard.crew.findings()
        report = Report(seed, minutes, monkey, yard.tallies(monkey.refs), findings)
        text, page = report.text(), report.page()
    print(text)
    if path := os.environ.get(RESULTS):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(page)
    assert findings == []
