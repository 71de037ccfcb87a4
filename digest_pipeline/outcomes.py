"""What one provider call can end as: a closed set, so that nothing is guessed.

An answer that cannot be read is ``Ambiguous``: never success and never failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """Why an attempt did not end as accepted. What each does is in ``delivery.retry_policy``."""

    CONNECT = "connect"
    THROTTLED = "throttled"
    TRANSIENT = "transient"
    AMBIGUOUS = "ambiguous"
    RECIPIENT = "recipient"
    CONTENT = "content"
    ACCOUNT = "account"
    WINDOW = "window"


class Stage(StrEnum):
    """How far the request had come: only ``before_wire`` proves that the provider saw nothing."""

    BEFORE_WIRE = "before_wire"
    ON_WIRE = "on_wire"
    AFTER_WIRE = "after_wire"


class Proof(StrEnum):
    """How sure we are that a message reached its reader; later members outrank earlier ones."""

    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    COMPLAINED = "complained"

    @property
    def rank(self) -> int:
        """Position in the lattice: a late ``delivered`` never overwrites ``complained``."""
        return list(Proof).index(self)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider took responsibility; ``replayed`` when it repeated an earlier answer."""

    message_id: str | None
    replayed: bool = False
    proof: Proof = Proof.ACCEPTED


@dataclass(frozen=True, slots=True)
class Refused:
    """A verdict about this message alone, which a repeat cannot change (recipient or content).

    ``suppressed``: the provider has the address on a suppression list of its own, or knows that it does
    not exist, so that other digests should not try it either.
    """

    failure_class: FailureClass
    detail: str
    suppressed: bool = False


@dataclass(frozen=True, slots=True)
class NotSent:
    """Proof that the provider did not take it this time: connect or transient.

    ``retry_after``: seconds before which another attempt for this recipient is pointless.
    """

    failure_class: FailureClass
    detail: str
    stage: Stage = Stage.BEFORE_WIRE
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Throttled:
    """The provider's capacity is used up: no attempt; the gate closes for ``retry_after`` seconds."""

    detail: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """The provider may have accepted it. ``integrity``: it holds other bytes under our key."""

    detail: str
    integrity: bool = False


@dataclass(frozen=True, slots=True)
class AccountRefused:
    """Nothing can be sent with this account until a person acts: halt, charge no row."""

    detail: str


Outcome = Accepted | Refused | NotSent | Throttled | Ambiguous | AccountRefused


@dataclass(frozen=True, slots=True)
class Found:
    """The provider knows the key: it was accepted, whatever became of it since.

    ``copies``: how many messages it lists under the key; two are a duplicate send.
    """

    message_id: str | None
    proof: Proof = Proof.ACCEPTED
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Absent:
    """The provider does not list the key now; whether that counts depends on when it was asked."""


@dataclass(frozen=True, slots=True)
class LookUpFailed:
    """The question got no readable answer; nothing is known."""

    detail: str
    retry_after: float | None = None


LookUp = Found | Absent | LookUpFailed
