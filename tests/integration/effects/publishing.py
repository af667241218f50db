"""A publish worker of one step, as a process of its own: it claims, performs, completes; or is killed on the way.

`python -m tests.integration.effects.publishing` with the plain values of `Order` on its standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ledger.connect import Database
from ledger.records.publish import Publish
from ledger.records.step import Completion
from ledger.steps import claim_step, complete_step
from runners.effects.book import StepBook
from runners.effects.credentials import Credential, Credentials
from runners.effects.effect import Patience, perform
from runners.effects.pace import LedgerGate
from runners.effects.publication import Publication, Publisher
from runners.workspace.store import Store
from tests.integration.effects.worlds import AT, Spec, effect_from
from tests.ledger.conftest import nothing

PATIENCE = Patience(settle_seconds=0.6, first_pause_seconds=0.05, turn_seconds=10, again_seconds=1)


@dataclass(frozen=True)
class Order:
    """What to publish: one effect by its `spec`, or a whole publication of a tree of `store`."""

    database: str
    step: int
    spec: Spec = field(default_factory=dict)
    publish: Spec = field(default_factory=dict)
    store: str = ""
    base: str = ""
    tree: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    job: str = "nested-links"


def publication_of(order: Order) -> Publication:
    """The publication that an order describes."""
    return Publication(
        publish=Publish.model_validate(order.publish),
        batch="linkcheck-fixes",
        job=order.job,
        issue="Links in sub-folders are resolved from the root\n\nThey should start at the document.",
        tree=order.tree,
        base_commit=order.base,
        at=AT,
    )


def publisher_of(order: Order, database: Database) -> Publisher:
    """The worker's part of it."""
    credentials = {host: Credential(token=token, user="pusher") for host, token in order.tokens.items()}
    return Publisher(Credentials(credentials), LedgerGate(database), PATIENCE)


def work_on(order: Order) -> str:
    """Claims the step, performs, and completes it; the receipt as JSON."""
    with Database(order.database, name="publisher") as database:
        claim = claim_step(database, order.step, owner="publisher", lease_seconds=600, estimate=nothing)
        assert claim is not None
        book = StepBook(database, claim)
        if order.spec:
            receipt = perform(effect_from(order.spec, LedgerGate(database)), book, patience=PATIENCE).receipt
        else:
            publisher = publisher_of(order, database)
            receipt = publisher.publish(publication_of(order), Store(Path(order.store)), book)
        complete_step(database, claim, Completion(result=receipt.plain(), end="verified"))
        return json.dumps(receipt.plain())


def run_worker(order: Order, *, crash: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a worker process; with `crash` it kills itself at that crash point."""
    environment = {**os.environ, "PATCHYARD_CRASH_POINTS": "1" if crash else "", "PATCHYARD_CRASH": crash}
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.effects.publishing"],
        input=json.dumps(asdict(order)),
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


if __name__ == "__main__":
    print(work_on(Order(**json.load(sys.stdin))))
