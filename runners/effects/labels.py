"""Labels on a request. Adding them is idempotent at every forge, so there is no third state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runners.effects.effect import After, Before, Receipt, Seen
from runners.effects.forge import Forge
from runners.effects.pace import Turns


@dataclass(frozen=True)
class Labels:
    """The request `number` has at least the labels `names`."""

    key: str
    forge: Forge
    number: int
    names: tuple[str, ...]

    kind = "labels"

    @property
    def turns(self) -> Turns | None:
        """As `effect.Effect`."""
        return self.forge.turns

    def described(self) -> dict[str, Any]:
        """As `effect.Effect`."""
        return {"repository": self.forge.where, "number": self.number, "labels": sorted(self.names)}

    def probe(self) -> Seen:
        """As `effect.Effect`."""
        has = {name.lower() for name in self.forge.labels(self.number)}
        if has.issuperset(name.lower() for name in self.names):
            return After(Receipt(number=self.number))
        return Before()

    def apply(self) -> Receipt:
        """As `effect.Effect`."""
        self.forge.add_labels(self.number, self.names)
        return Receipt(number=self.number)
