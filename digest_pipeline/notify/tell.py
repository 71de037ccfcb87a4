"""Telling what is due, within the time that a sensor's tick has."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection

from digest_pipeline.errors import SpecError
from digest_pipeline.ledger import notices
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.notices import Notice
from digest_pipeline.notify import log, webhook
from digest_pipeline.notify.channels import EMAIL, LOG, WEBHOOK, Told, Try
from digest_pipeline.notify.mail import mail
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest

PATIENCE_SECONDS = 25.0
"""No try starts later: Dagster gives a tick 60 seconds, and one try takes up to 20."""


def tell_due(
    ledger: Ledger, settings: Settings, digests: Mapping[str, Digest], patience: float = PATIENCE_SECONDS
) -> Counter[str]:
    """Try every notice of these digests that is due, once each; return how many tries ended how.

    Whatever two processes do at the same time, a claim lets one of them try. A channel that is down
    keeps neither the others nor the other digests waiting.
    """
    with ledger.read() as conn:
        due = notices.due(conn, digests=digests.keys())
    ended: Counter[str] = Counter()
    deadline = time.monotonic() + patience
    # The log first: it is quick, and it is what is left when everything else is down.
    for notice in sorted(due, key=lambda one: one.channel != LOG):
        if time.monotonic() > deadline:
            break
        tried = tell(ledger, settings, digests.get(notice.incident.digest), notice)
        if tried is not None:
            ended[tried.told] += 1
    return ended


def tell(ledger: Ledger, settings: Settings, digest: Digest | None, notice: Notice) -> Try | None:
    """Try one notice; None when somebody else has claimed it, or its time has not come."""
    try:
        tried = asyncio.run(_through(ledger, settings, digest, notice))
    except SpecError as error:
        # A channel that was configured when the incident was opened and is not usable now.
        tried = Try(Told.NOT_YET, type(error).__name__)
    if tried is not None and tried.told not in (Told.YES, Told.NO_PERMIT):
        log.notice_not_delivered(notice.incident, notice.channel, tried)
    return tried


async def _through(ledger: Ledger, settings: Settings, digest: Digest | None, notice: Notice) -> Try | None:
    if digest is not None and notice.channel.startswith(EMAIL):
        return await mail(ledger, settings, digest, notice)
    if not ledger.transact(lambda conn: notices.claim(conn, notice)):
        return None
    if notice.channel == LOG:
        log.incident_opened(notice.incident, settings.ui_url)
        tried = Try(Told.YES)
    elif digest is not None and notice.channel == WEBHOOK:
        tried = await webhook.post(digest, notice.incident, settings.ui_url)
    else:
        tried = Try(Told.NEVER, "the digest or the channel is no longer configured")
    ledger.transact(lambda conn: _record(conn, notice, tried))
    return tried


def _record(conn: Connection, notice: Notice, tried: Try) -> None:
    # A webhook is told again under its key, whatever became of an unanswered try.
    change = notices.told if tried.told in (Told.YES, Told.NEVER) else notices.not_told
    change(conn, notice, tried.told)
