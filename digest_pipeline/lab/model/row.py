"""The row of one delivery, as a pure value."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from digest_pipeline.states import State


class Content(StrEnum):
    """What became of the generated rows of a delivery."""

    PRESENT = "present"
    ERASED = "erased"
    CLEANED = "cleaned"
    RETIRED = "retired"
    """Removed by the retention rule."""


class Now(NamedTuple):
    """What is the same for every key: whether the window is over, and the credential in use."""

    window_over: bool = False
    account: int = 0


class Row(NamedTuple):
    """What the ledger holds of one delivery.

    ``ambiguous``: the newest attempt that may have been accepted, 0 for none. ``absent``: 1 after a first
    counted absence, 2 once a second would lie far enough apart. ``visible``: an accepted key must show up
    in look-ups by now. ``fresh`` and ``retained``: its first possibly-wire claim is young enough for an
    idempotent re-send, and for a look-up. ``budget``: charged attempts left; 1 is the last. ``late``: it
    may be sent although the window is over. ``suppressed``: its address is on the list. ``proved``: the
    proof that cleanup asks for. ``recorded``: the record of an attempt says accepted. ``told``: a person
    said that it was sent. ``marked``: restored from a backup, and not doubted yet.
    """

    state: State = State.PENDING
    token: int = 0
    ambiguous: int = 0
    lease_over: bool = False
    absent: int = 0
    visible: bool = False
    fresh: bool = True
    retained: bool = True
    budget: int = 2
    late: bool = False
    suppressed: bool = False
    content: Content = Content.PRESENT
    proved: bool = False
    recorded: bool = False
    account: int = 0
    told: bool = False
    marked: bool = False

    @property
    def spent(self) -> int:
        """The budget after one more charged attempt; the last one is not counted further down."""
        return max(1, self.budget - 1)
