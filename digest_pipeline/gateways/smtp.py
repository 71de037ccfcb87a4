"""The gateway to an SMTP relay (RFC 5321; submission, RFC 6409).

A relay keeps no idempotency key and cannot be asked: what may have been accepted is ambiguous, and only a
person or a provider's event settles it. That is why every other end is told apart as early as it can be:
the verdict is the reply to the final dot, and everything behind it is tear-down.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from digest_pipeline import faults
from digest_pipeline.content.mailbox import parse_mailbox
from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import InputError
from digest_pipeline.gateways.base import Capabilities, Envelope
from digest_pipeline.gateways.envelopes import keyed, unsendable
from digest_pipeline.gateways.json_api import account_of
from digest_pipeline.gateways.kinds import Kind, Settings
from digest_pipeline.gateways.smtp_pool import Pool
from digest_pipeline.gateways.smtp_replies import Step, verdict
from digest_pipeline.gateways.smtp_session import Dropped, Missing, Said, Session
from digest_pipeline.gateways.smtp_settings import SETTINGS, Manner, Server, manner_of, server_of
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    LookUp,
    LookUpFailed,
    NotSent,
    Outcome,
    Refused,
)

CAPABILITIES = Capabilities(smtputf8=True)
"""Neither keys nor look-ups. SMTPUTF8 is used where the server offers it, and its lack is told before MAIL."""


class SmtpGateway:
    """Sends through one relay, over connections that are kept while every reply was clear."""

    name = "smtp"

    def __init__(
        self, server: Server, capabilities: Capabilities = CAPABILITIES, manner: Manner | None = None
    ) -> None:
        self._manner = manner or Manner()
        self.capabilities = capabilities
        self._pool = Pool(server, self._manner.idle.total_seconds())
        self._places = asyncio.Semaphore(self._manner.connections)
        self.account = account_of(server.host, server.username, server.password)

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := unsendable(envelope, smtputf8=self.capabilities.smtputf8):
            return refused
        try:
            message = to_mime(keyed(envelope), envelope.recipient)
        except InputError as error:
            return Refused(FailureClass.CONTENT, str(error))
        attempt = _Attempt(self._pool, self._manner, envelope, message)
        try:
            async with asyncio.timeout(self._manner.time_out.total_seconds()):
                async with self._places:
                    return await attempt.make()
        except TimeoutError:
            return attempt.unanswered("TimeoutError")

    async def look_up(self, operation_key: str) -> LookUp:
        """A relay can't be asked."""
        return LookUpFailed("an SMTP relay can't be asked")

    async def __aenter__(self) -> Self:
        self._places = asyncio.Semaphore(self._manner.connections)  # of this event loop
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.close()

    def __repr__(self) -> str:
        return f"SmtpGateway(account={self.account!r})"


class _Attempt:
    """One message on its way, at most once on the wire."""

    def __init__(self, pool: Pool, manner: Manner, envelope: Envelope, message: bytes) -> None:
        self._pool, self._put_off = pool, manner.put_off.total_seconds()
        self._message, self._recipient = message, envelope.recipient
        self._sender = manner.envelope_from or parse_mailbox(envelope.message.sender, "From").address
        self._hide = (*pool.server.hidden, envelope.recipient, envelope.message.to_name)
        self._session: Session | None = None
        self._verdict: Outcome | None = None

    async def make(self) -> Outcome:
        """Send over a kept connection; one that turns out to have ended is replaced, once."""
        outcome = await self._over(*self._pool.take(fresh=False))
        return outcome or await self._over(*self._pool.take(fresh=True)) or self.unanswered("no connection")

    def unanswered(self, kind: str) -> Outcome:
        """Return what an end without a reply means, at the step that was under way.

        The time may also run out behind the verdict, which stands then.
        """
        return self._verdict or _lost(self._session.step if self._session else Step.CONNECT, kind)

    async def _over(self, session: Session, used: bool) -> Outcome | None:
        """Send over one connection; None if it had carried others before, and ended before this message began."""
        self._session = session
        try:
            self._verdict = await self._deliver(session, used)
        except Said as said:
            if used and said.step is Step.MAIL and said.reply.code == 421:
                return None
            self._verdict = verdict(said.step, said.reply, self._hide, self._put_off)
        except Missing as missing:
            self._verdict = AccountRefused(f"configuration: {missing}")
        except Dropped as dropped:
            if used and dropped.step is Step.MAIL:
                return None
            self._verdict = _lost(dropped.step, dropped.kind)
        finally:
            await self._pool.give(session, finished=isinstance(self._verdict, Accepted))
        return self._verdict

    async def _deliver(self, session: Session, used: bool) -> Outcome:
        if not used:
            await session.open()
        smtputf8 = not (self._message.isascii() and self._sender.isascii())
        if refused := self._unfit(session, smtputf8):
            return refused
        reply = await session.deliver(self._sender, self._recipient, self._message, smtputf8=smtputf8)
        # The server has judged the message, and the ledger has heard no word of it yet.
        faults.reach(faults.Point.DURING_PROVIDER_CALL)
        return verdict(Step.DOT, reply, self._hide)

    def _unfit(self, session: Session, smtputf8: bool) -> Refused | None:
        """Return why this server can't carry the message, found before it hears of it."""
        if smtputf8 and not session.offers("smtputf8"):
            return Refused(FailureClass.RECIPIENT, "the server offers no SMTPUTF8 for this address")
        limit = session.size_limit
        if limit is not None and len(self._message) > limit:
            return Refused(FailureClass.CONTENT, f"{len(self._message)} octets, the server takes {limit}")
        return None


def _lost(step: Step, kind: str) -> Outcome:
    if step is Step.DOT:
        return Ambiguous(f"no reply to the message: {kind}")
    # Up to the login it is a matter of the server alone; several in a row halt the gate.
    of_message = step in (Step.MAIL, Step.RCPT, Step.DATA)
    failure = FailureClass.TRANSIENT if of_message else FailureClass.CONNECT
    return NotSent(failure, f"no reply to {step}: {kind}")


def _create(settings: Settings, capabilities: Capabilities) -> SmtpGateway:
    return SmtpGateway(server_of(settings), capabilities, manner_of(settings))


KIND = Kind(
    summary="an SMTP relay: no keys, no look-ups; what may have been accepted waits for a person",
    capabilities=CAPABILITIES,
    settings=SETTINGS,
    factory=_create,
    secrets=frozenset({"password"}),
)
