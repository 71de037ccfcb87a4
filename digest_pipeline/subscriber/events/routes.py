"""``POST /events/<provider>``: what a provider reports, taken in before it is answered.

``routes(ledger, settings)`` returns the routes to mount. 2xx: it is committed, or nothing of ours. 4xx: not
authentic, or unreadable; nothing was written. 404: no such provider, or none configured. 5xx: nothing was
written, send it again. Answers are constant words: nothing of a request comes back.
"""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from http.client import HTTPException
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from digest_pipeline import telemetry
from digest_pipeline.errors import DigestError
from digest_pipeline.ledger import provider_events
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.ledger.provider_events import Limits
from digest_pipeline.settings import Settings
from digest_pipeline.spec_suppression import DEFAULT_SUPPRESSION, Suppression
from digest_pipeline.subscriber.bodies import TooLargeError, body_of
from digest_pipeline.subscriber.events import brevo, mailgun, mailjet, postmark, resend, sendgrid, ses
from digest_pipeline.subscriber.events.log import events_taken_in, subscription_confirmed
from digest_pipeline.subscriber.events.reading import Posted, Reader, RefusedError

MAX_BODY = 4 * 1024 * 1024
"""Bytes. SendGrid and Mailjet send many events at once."""

SINGLE = 512 * 1024
"""Bytes of one event: SNS has at most 256 KB in a message."""

ONE_EACH = frozenset({"mailgun", "ses"})
"""Whose signature is inside the body, which is read before anything is known to be authentic."""

PATIENCE = 5.0
"""Seconds for which a ledger that is busy is tried: providers wait about ten."""


def routes(ledger: Ledger, settings: Settings) -> list[Route]:
    """Return the routes for these providers. Raises InputError for a key that is none, SpecError for a digest."""
    readers = readers_of(settings)
    limits = limits_of(settings)

    async def receive(request: Request) -> Response:
        read = readers.get(request.path_params["provider"])
        if read is None:
            return _said(404, "not found")
        try:
            posted = await _posted(
                request, SINGLE if request.path_params["provider"] in ONE_EACH else MAX_BODY
            )
            return await run_in_threadpool(_take_in, ledger, read, posted, limits)
        except TooLargeError:
            return _said(413, "too large")
        except TimeoutError:
            return _said(408, "too slow")
        except RefusedError as refused:
            return _said(refused.status, refused.why)
        except DBAPIError:
            return _said(503, "not taken: send it again")

    return [Route("/events/{provider}", receive, methods=["POST"])]


def readers_of(settings: Settings) -> dict[str, Reader]:
    """Return a reader for each provider whose events can be authenticated."""
    given = settings.events
    found: dict[str, Reader] = {}
    if secrets := given.get("RESEND_SECRET"):
        found["resend"] = resend.reader(secrets)
    if pairs := given.get("POSTMARK_SECRET"):
        networks, servers = given.get("POSTMARK_NETWORKS", ()), given.get("POSTMARK_SERVERS", ())
        found["postmark"] = postmark.reader(pairs, networks, servers)
    if pairs := given.get("MAILJET_SECRET"):
        found["mailjet"] = mailjet.reader(pairs)
    if keys := given.get("SENDGRID_KEY"):
        found["sendgrid"] = sendgrid.reader(keys)
    if keys := given.get("MAILGUN_SECRET"):
        found["mailgun"] = mailgun.reader(keys)
    if tokens := given.get("BREVO_SECRET"):
        found["brevo"] = brevo.reader(tokens)
    if topics := given.get("SES_TOPICS"):
        found["ses"] = ses.reader(topics, fetch_from_amazon, subscription_confirmed)
    return found


def limits_of(settings: Settings) -> Limits:
    """Return each digest's limits; those of a digest that is not configured here are the defaults."""
    try:
        known: Mapping[str, Suppression] = {name: d.suppression for name, d in settings.digests().items()}
    except DigestError:
        known = {}  # a host that only listens need not have the specifications, nor their variables
    return lambda digest: known.get(digest, DEFAULT_SUPPRESSION)


def _take_in(ledger: Ledger, read: Reader, posted: Posted, limits: Limits) -> Response:
    events = read(posted)
    # In one order for everybody, so that two requests about the same messages do not wait for each other.
    ordered = sorted(events, key=lambda event: (event.key or "", event.message_id or "", event.event_id))
    if ordered:
        taken, overtaken = ledger.transact(partial(_all_in, events=ordered, limits=limits), patience=PATIENCE)
        events_taken_in(ordered[0].provider, taken)
        telemetry.overtaken(overtaken)
    return _said(200, "taken in")


def _all_in(conn: Connection, events: Sequence[Event], limits: Limits) -> tuple[Counter[str], list[str]]:
    """All of a request or nothing: half of one would never come again."""
    receipts = [provider_events.take_in(conn, event, limits) for event in events]
    return Counter(str(one.taken) for one in receipts), [key for one in receipts for key in one.overtaken]


async def _posted(request: Request, limit: int) -> Posted:
    body = await body_of(request, limit)
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Posted(headers, body, request.client.host if request.client else "", time.time())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@lru_cache(maxsize=32)
def fetch_from_amazon(url: str) -> bytes:
    """Return what is at a URL that was checked to be Amazon's; follows no redirect. Raises OSError."""
    opener = urllib.request.build_opener(_NoRedirects())
    try:
        with opener.open(url, timeout=10) as answer:
            found: bytes = answer.read(65_536)
    except HTTPException as error:
        raise OSError(type(error).__name__) from None
    return found


def _said(status: int, words: str) -> Response:
    return PlainTextResponse(words + "\n", status_code=status)
