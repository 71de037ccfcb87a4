"""What can need a person, and what is written down about it for whoever is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from digest_pipeline.ledger.incidents import Identity

SHOWN_KEYS = 5


class Kind(StrEnum):
    """What happened. The second sentence of each says when it is well again."""

    RUN_FAILED = "run_failed"
    """A run failed and no automatic retry is coming. A run succeeds that did the same."""

    RUN_CANCELED = "run_canceled"
    """Somebody stopped a run. A run succeeds that did the same."""

    CHECK_FAILED = "check_failed"
    """An asset check fails for its period. It holds for that period."""

    CHECK_WARNED = "check_warned"
    """An asset check warns. It holds without a warning."""

    ORDER_FAILED = "order_failed"
    """The job of a person's order failed. The same job succeeds for that digest."""

    SENDING_HALTED = "sending_halted"
    """The provider refuses the account, or cannot be reached. A message was accepted."""

    UNKNOWN_HELD = "unknown_held"
    """Nobody knows whether these were sent, and no evidence comes by itself. They are decided."""

    WINDOW_CLOSED = "window_closed"
    """What could have been sent was not before its window closed. It is sent late, or closed."""

    PERIOD_MISSED = "period_missed"
    """No content was ever sealed for a period whose window is over. It is."""

    TEST = "test"
    """A person asked whether anybody would hear. It is over when it was told."""


CONDITIONS = frozenset({Kind.SENDING_HALTED, Kind.UNKNOWN_HELD, Kind.WINDOW_CLOSED, Kind.PERIOD_MISSED})
"""Those that are seen in the ledger's present state, and end when it no longer shows them."""


class Severity(StrEnum):
    """``info`` and ``warning`` are only logged. ``critical``: something is wrong, not merely unfinished."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def is_told(self) -> bool:
        """Whether people are told, and not the log alone."""
        return self in (Severity.ERROR, Severity.CRITICAL)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is told. Only text of ours, counts, operation keys and ids: never an address or content.

    ``job`` and ``asset``: where a run failed, which decides what mends it.
    """

    text: str
    next_command: str = ""
    counts: tuple[tuple[str, int], ...] = ()
    keys: tuple[str, ...] = ()
    run_id: str = ""
    job: str = ""
    asset: str = ""

    def to_json(self) -> str:
        """Return what is stored."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, stored: str) -> Facts:
        """Return what was stored."""
        found = json.loads(stored)
        found["counts"] = tuple((name, count) for name, count in found["counts"])
        return cls(**found | {"keys": tuple(found["keys"])})


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs a person, seen at an instant (microseconds)."""

    what: Identity
    severity: Severity
    facts: Facts
    at: int
