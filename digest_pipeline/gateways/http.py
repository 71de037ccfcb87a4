"""What every HTTP gateway shares: one exchange without retries, and what its end means.

The two translation tables of this transport are ``unanswered`` (no readable answer) and
``by_status`` (an answer the adapter has no better reading for).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from digest_pipeline import faults
from digest_pipeline.gateways.retry_after import parse_retry_after
from digest_pipeline.outcomes import (
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Outcome,
    Refused,
    Stage,
    Throttled,
)

MAX_ANSWER = 4 * 1024 * 1024
"""Bytes read of an answer; what is longer is not one of a mail API."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Times and counts of one gateway's connections.

    ``idle`` must stay below the provider's keep-alive: a POST on a connection that the other side
    has just closed fails after its bytes have left, and is ambiguous for nothing.
    """

    total: timedelta = timedelta(seconds=30)
    connect: timedelta = timedelta(seconds=10)
    idle: timedelta = timedelta(seconds=10)
    connections: int = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. Not shown in ``repr``: headers and body, which may hold personal data."""

    status: int
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    body: bytes = field(repr=False, default=b"")

    def fields(self) -> dict[str, Any] | None:
        """Return the JSON object in the body, or None when it is anything else."""
        found = self._json()
        return found if isinstance(found, dict) else None

    def array(self) -> list[Any] | None:
        """Return the JSON array in the body, or None when it is anything else."""
        found = self._json()
        return found if isinstance(found, list) else None

    def _json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Wire:
    """Whether a request may have left. ``touched`` is set before its first byte, never after."""

    touched = False


def open_session(limits: HttpLimits, **connector: Any) -> aiohttp.ClientSession:
    """Return a session that keeps no cookies, reads no proxy settings and follows nothing.

    ``connector``: what aiohttp's TCPConnector is told beside the limits.
    """
    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(_touch)
    tracing.freeze()
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limits.connections,
            keepalive_timeout=limits.idle.total_seconds(),
            ttl_dns_cache=30,
            **connector,
        ),
        timeout=aiohttp.ClientTimeout(
            total=limits.total.total_seconds(), connect=limits.connect.total_seconds(), ceil_threshold=3600
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
        trace_configs=[tracing],
        middlewares=(_never_again,),
        headers={"Accept-Encoding": "identity"},
    )


async def _touch(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    # aiohttp calls this before it hands the first bytes to the transport, so an error without it
    # proves that nothing left; the other way round it may claim too much, which is the safe side.
    context.trace_request_ctx.touched = True


class ConnectionDroppedError(aiohttp.ClientConnectionError):
    """A connection ended under a request; not one of the errors that aiohttp tries again."""


async def _never_again(
    request: aiohttp.ClientRequest,
    handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
) -> aiohttp.ClientResponse:
    # aiohttp repeats idempotent methods once on these two errors (client.py, retry_persistent_connection),
    # unasked and beyond the rate gate's count. A POST isn't among them; a look-up's GET is.
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ConnectionDroppedError(type(error).__name__) from error


async def exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: str | URL,
    headers: Mapping[str, str],
    body: bytes | None,
) -> Answer | NotSent | Ambiguous:
    """Make one request once. Raises only CancelledError, which leaves the claim to its lease."""
    wire = Wire()
    try:
        async with session.request(
            method, url, headers=headers, data=body, allow_redirects=False, trace_request_ctx=wire
        ) as response:
            # The provider has judged the request, and we have read no word of its verdict yet.
            faults.reach(faults.Point.DURING_PROVIDER_CALL)
            content = await _read(response.content)
            return Answer(response.status, response.headers, content)
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
        # UnicodeError: a host name that cannot be encoded, found before anything is sent.
        return unanswered(error, wire.touched)


async def _read(stream: aiohttp.StreamReader) -> bytes:
    chunks, size = [], 0
    async for chunk in stream.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER:
            break
    return b"".join(chunks)


def unanswered(error: Exception, touched: bool) -> NotSent | Ambiguous:
    """Return what an exchange without a readable answer means.

    The text names the kind of error only: aiohttp's own texts quote URLs, headers and bodies.
    """
    if not touched:
        return NotSent(FailureClass.CONNECT, f"no connection: {type(error).__name__}")
    return Ambiguous(f"no readable answer: {type(error).__name__}")


def by_status(
    answer: Answer, detail: str, now: datetime, *, from_api: bool, unavailable_is_unprocessed: bool = False
) -> Outcome:
    """Return what an answer means by its status alone.

    ``from_api``: the body is the API's own. 400 and 422 are about this message only then; a web page
    comes from something in between, which would say it to everyone. ``unavailable_is_unprocessed``:
    the provider documents that it took nothing when it says 503.
    """
    match answer.status:
        case 429:
            return Throttled(detail, retry_after(answer, now))
        case 413:
            return Refused(FailureClass.CONTENT, detail)
        case 400 | 422 if from_api:
            return Refused(FailureClass.CONTENT, detail)
        case 503 if unavailable_is_unprocessed and from_api:
            return NotSent(FailureClass.TRANSIENT, detail, Stage.AFTER_WIRE)
        case 408 | 409:
            return Ambiguous(detail)
        case status if status >= 500 or status < 300:
            return Ambiguous(detail)
        case _:
            return AccountRefused(detail)


def retry_after(answer: Answer, now: datetime) -> float | None:
    """Return the wait an answer asks for; a date in it is read by the provider's own clock, if given."""
    try:
        theirs = parsedate_to_datetime(answer.headers.get("Date", ""))
    except (ValueError, TypeError, OverflowError, IndexError):
        theirs = now
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=now.tzinfo)
    return parse_retry_after(answer.headers.get("Retry-After"), theirs)
