"""What a person decides about single deliveries: a bounded set of keys, a reason, a dry run first.

Every operation here answers with a Decision: what it would do, or did, and why each refused key was
refused, by name. One bad key never stops the others. The original operation keys are kept, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from digest_pipeline.errors import InputError
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest


@dataclass(frozen=True, slots=True)
class Order:
    """Who wants what done to which keys of one period, and why. ``who`` is declared, not proven."""

    digest: Digest
    period: Period
    keys: tuple[str, ...]
    who: str
    reason: str

    def require_bounds(self, cap: int) -> None:
        """Raise InputError for an empty set, a missing reason, or more keys than ``cap``."""
        if not self.keys:
            raise InputError("no keys were given: an order names each delivery it is about")
        if not self.reason.strip():
            raise InputError("an order needs a reason: it is written to the audit trail")
        if not self.who.strip():
            raise InputError("an order needs to say who gives it: --by")
        if len(self.keys) > cap:
            raise InputError(
                f"{len(self.keys)} keys are more than the {cap} that one order may name; split it"
            )


@dataclass(slots=True)
class Decision:
    """What an order comes to. ``applied`` False: a dry run, nothing was written."""

    kind: str
    applied: bool
    changed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    approval: int | None = None

    @property
    def reasons(self) -> dict[str, int]:
        """How many keys were refused, by reason."""
        counted: dict[str, int] = {}
        for reason in self.refused.values():
            counted[reason] = counted.get(reason, 0) + 1
        return counted


def unique(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys once each, in order."""
    return tuple(dict.fromkeys(key.strip() for key in keys if key.strip()))
