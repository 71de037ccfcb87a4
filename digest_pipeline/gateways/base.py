"""The contract of a gateway: build a request, read the answer, and nothing else.

A gateway keeps no clock of its own, retries nothing, logs nothing and knows no ledger. The send
loop calls ``send`` at most once per claim; reconciliation calls ``look_up``. ``send`` never raises
for anything the provider or the network did: each of those is an Outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from digest_pipeline.content.message import Message
from digest_pipeline.outcomes import LookUp, Outcome


class Idempotency(StrEnum):
    """What the provider does with a key it has seen: nothing, refuse it, or repeat its answer."""

    NONE = "none"
    REFUSES = "refuses"
    REPLAYS = "replays"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the provider documents. Reconciliation decides by these and by nothing else.

    ``key_lifetime``: how long a key is remembered, from its first use; None without keys.
    ``visibility_delay`` and ``look_up_retention``: a key that was accepted shows up in look-ups
    after the first and until the second; None where it cannot be asked.
    ``batch_size``: messages in one call. ``delivered_proof``: look-ups or events can say more than
    accepted.
    """

    idempotency: Idempotency = Idempotency.NONE
    key_lifetime: timedelta | None = None
    look_up: bool = False
    visibility_delay: timedelta | None = None
    look_up_retention: timedelta | None = None
    batch_size: int = 1
    delivered_proof: bool = False

    def __post_init__(self) -> None:
        if (self.idempotency is Idempotency.NONE) != (self.key_lifetime is None):
            raise ValueError("key_lifetime goes with idempotency keys, and only with them")
        if self.look_up != (self.visibility_delay is not None and self.look_up_retention is not None):
            raise ValueError("look_up needs a visibility delay and a retention, and only then")


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message to exactly one recipient, under its operation key."""

    operation_key: str
    recipient: str
    message: Message


class Gateway(Protocol):
    """What the send loop and reconciliation use. Entered once per run, on one event loop."""

    name: str
    account: str
    """Which credential is used, as a short digest of it: never the credential."""
    capabilities: Capabilities

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message to the provider, once."""
        ...

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask what became of a key. Only called where ``capabilities.look_up`` is true."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
