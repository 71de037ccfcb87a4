"""The contract of a gateway: build a request, read the answer, and nothing else.

A gateway keeps no clock of its own, retries nothing, logs nothing and knows no ledger. The send
loop calls ``send`` at most once per claim; reconciliation calls ``look_up``. ``send`` never raises
for anything the provider or the network did: each of those is an Outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class BatchKey(StrEnum):
    """What a key covers in a call with several messages: nothing, each of them, or the whole call."""

    NONE = "none"
    PER_MESSAGE = "per_message"
    PER_BATCH = "per_batch"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the provider documents. Reconciliation decides by these and by nothing else.

    ``key_lifetime``: how long a key is remembered, from its first use; None without keys.
    ``visibility_delay`` and ``look_up_retention``: a key that was accepted shows up in look-ups
    after the first and until the second; None where it cannot be asked.
    ``batch_size``: messages in one call. ``batch_key``: what the provider's idempotency covers when a
    call carries several. ``delivered_proof``: look-ups or events can say more than accepted.
    ``events``: it reports what became of a message by webhook. ``smtputf8``: local parts outside ASCII
    can be sent to.
    """

    idempotency: Idempotency = Idempotency.NONE
    key_lifetime: timedelta | None = None
    look_up: bool = False
    visibility_delay: timedelta | None = None
    look_up_retention: timedelta | None = None
    batch_size: int = 1
    batch_key: BatchKey = BatchKey.NONE
    delivered_proof: bool = False
    events: bool = False
    smtputf8: bool = True

    def __post_init__(self) -> None:
        if (self.idempotency is Idempotency.NONE) != (self.key_lifetime is None):
            raise ValueError("key_lifetime goes with idempotency keys, and only with them")
        if self.look_up != (self.visibility_delay is not None and self.look_up_retention is not None):
            raise ValueError("look_up needs a visibility delay and a retention, and only then")
        if self.batch_size == 1 and self.batch_key is not BatchKey.NONE:
            raise ValueError("batch_key goes with a batch_size above 1")


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message to exactly one recipient, under its operation key."""

    operation_key: str
    recipient: str
    message: Message


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """The provider took no message of a call, and does not say whose fault it is.

    ``alone``: what it means when the call carried one message only.
    """

    alone: Outcome


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


class BatchGateway(Gateway, Protocol):
    """A gateway whose ``capabilities.batch_size`` is above 1."""

    async def send_batch(
        self, envelopes: Sequence[Envelope], batch_key: str | None = None
    ) -> list[Outcome] | BatchRefused:
        """Offer several messages, with different operation keys, in one call, once.

        Returns one outcome for each, in the order of the envelopes: matched by key, or by position only
        where the provider documents that order. A message without a readable verdict is Ambiguous.
        ``batch_key`` is the call's idempotency key where ``capabilities.batch_key`` is ``PER_BATCH``: the
        same key always comes with the same envelopes in the same order.
        """
        ...
