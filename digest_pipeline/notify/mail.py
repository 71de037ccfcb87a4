"""Mail through the digest's own gateway and rate gate: never twice, also where that means perhaps never."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sqlalchemy import Connection

from digest_pipeline.delivery import rate_gate
from digest_pipeline.delivery.gate_keeping import close_gate, pause_for, permit_one
from digest_pipeline.delivery.plan import gate_name, resend_lifetime
from digest_pipeline.errors import EnvironmentMismatchError
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Envelope, Gateway
from digest_pipeline.installation import settings_of
from digest_pipeline.ledger import migrate, notices, pauses, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.notices import Notice
from digest_pipeline.notify.channels import EMAIL, Told, Try, recipient_of, sender_of
from digest_pipeline.notify.wording import as_message, mail_key
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Outcome,
    Refused,
    Throttled,
)
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest

TIME_OUT_SECONDS = 10.0
_LIMITS = {"time_out": f"{TIME_OUT_SECONDS:g}s", "connections": "1"}
_HORIZON_SECONDS = 5.0
"""How long a permit may be waited for: senders at work reserve theirs a little ahead."""
_SLACK_SECONDS = rate_gate.SLACK / 1_000_000


def alert_gateway(digest: Digest) -> Gateway:
    """Return the digest's gateway with the patience of a sensor's tick. Raises SpecError."""
    return registry.create(digest.gateway.kind, settings_of(digest) | _LIMITS)


async def mail(ledger: Ledger, settings: Settings, digest: Digest, notice: Notice) -> Try | None:
    """Mail one recipient, once; None when somebody else has claimed it.

    A message that may have left earlier is offered again only where the gateway surely repeats its
    answer to the same key: same account, inside the key's lifetime. Else it counts as told.
    """
    address = recipient_of(digest, notice.channel)
    if not settings.sends or address is None:
        return _end(ledger, notice, Told.NEVER, "sending is off" if address else "no longer configured")
    gateway = alert_gateway(digest)
    envelope = Envelope(
        mail_key(notice.incident, notice.channel.removeprefix(EMAIL)),
        address,
        as_message(notice.incident, sender_of(digest), settings.ui_url),
    )
    async with gateway:  # before the permit: it is good for a quarter of a second
        claimed = ledger.transact(lambda conn: _claim(conn, digest, gateway, notice, settings))
        if not isinstance(claimed, float):
            return claimed
        await asyncio.sleep(max(0.0, claimed - time.monotonic()))
        if time.monotonic() > claimed + _SLACK_SECONDS:
            outcome: Outcome = NotSent(FailureClass.CONNECT, "the permit came too late")
        else:
            outcome = await gateway.send(envelope)
    tried = _judge(outcome)
    ledger.transact(lambda conn: _settle(conn, notice, tried))
    if isinstance(outcome, Throttled):
        close_gate(ledger, gate_name(gateway), pause_for(outcome.retry_after))
    return tried


def _claim(
    conn: Connection, digest: Digest, gateway: Gateway, notice: Notice, settings: Settings
) -> Try | float | None:
    """Take the try, a permit and the mark of doubt together: when it starts, on the monotonic clock.

    Else how it ends; None: not ours.
    """
    try:
        migrate.require_same_environment(conn, settings.environment)
    except EnvironmentMismatchError:
        return Try(Told.NO_PERMIT, "the ledger is a copy: nothing is mailed from it")
    if pauses.gateway_is_paused(conn, gateway.name):
        return Try(Told.NO_PERMIT, "the gateway is paused")
    if notice.doubtful_at is not None and not _is_replayed(conn, gateway, notice):
        if not notices.claim(conn, notice):
            return None
        notices.told(conn, notice, Told.DOUBTFUL)
        return Try(Told.DOUBTFUL, "an earlier try may have reached them")
    with conn.begin_nested() as taken:
        if not notices.claim(conn, notice):
            return None
        starts = permit_one(conn, gate_name(gateway), digest.rate, _HORIZON_SECONDS)
        if starts is None:
            taken.rollback()
            return Try(Told.NO_PERMIT, "the rate gate is halted, closed or busy")
        notices.mark_doubtful(conn, notice, gateway.account)
        return starts


def _is_replayed(conn: Connection, gateway: Gateway, notice: Notice) -> bool:
    lifetime = resend_lifetime(gateway.capabilities, TIME_OUT_SECONDS)
    assert notice.doubtful_at is not None
    if lifetime is None or notice.account != gateway.account:
        return False
    return reads.now(conn) - notice.doubtful_at < lifetime


def _judge(outcome: Outcome) -> Try:
    match outcome:
        case Accepted():
            return Try(Told.YES)
        case Refused(failure_class=failure_class):
            return Try(Told.NEVER, str(failure_class))
        case Ambiguous(integrity=True):
            return Try(Told.DOUBTFUL, "the provider holds other bytes under this key")
        case Ambiguous():
            return Try(Told.PERHAPS, "no readable answer")
        case Throttled() | NotSent() | AccountRefused():
            return Try(Told.NOT_YET, type(outcome).__name__)


def _settle(conn: Connection, notice: Notice, tried: Try) -> None:
    change: Callable[[Connection, Notice, str], bool] = {
        Told.NOT_YET: notices.not_told,
        Told.PERHAPS: notices.maybe_told,
    }.get(tried.told, notices.told)
    change(conn, notice, tried.told)


def _end(ledger: Ledger, notice: Notice, told: Told, why: str) -> Try | None:
    def work(conn: Connection) -> bool:
        return notices.claim(conn, notice) and notices.told(conn, notice, told)

    return Try(told, why) if ledger.transact(work) else None
