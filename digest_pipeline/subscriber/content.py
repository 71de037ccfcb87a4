"""Where a subscriber gets the frozen message from that a push names: a ledger, or the pipeline's content path.

``GET /content/<key>`` (``routes``) is that path, on the pipeline's side. It answers a bearer token alone,
gives out sealed messages that are still to be settled, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from yarl import URL

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.https_push_network import tls_context
from digest_pipeline.keys import MAX_KEY_LENGTH
from digest_pipeline.ledger import frozen_content
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.frozen_content import Frozen, Gone

MAX_CONTENT = 32 * 1024 * 1024
TIME_OUT = 10.0
"""Seconds for a message to arrive: a push waits for it."""


class ContentUnavailableError(Exception):
    """The content could not be had now. Its text is constant."""


class Contents(Protocol):
    """Where messages come from. ``close`` at the end."""

    async def fetch(self, operation_key: str) -> Frozen | Gone | None:
        """Return a message; None where nobody has sealed it. Raises ContentUnavailableError."""

    async def close(self) -> None:
        """Let go of connections."""


class LedgerContents:
    """Reads the pipeline's ledger itself, and closes it at the end."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def fetch(self, operation_key: str) -> Frozen | Gone | None:
        return await run_in_threadpool(_find, self._ledger, operation_key)

    async def close(self) -> None:
        self._ledger.close()


class HttpContents:
    """Asks the content path at ``url``; follows no redirect. Raises SpecError for what can't be asked safely."""

    def __init__(self, url: str, tokens: Sequence[str], ca_file: str = "") -> None:
        parsed = URL(url)
        is_local = parsed.host in ("localhost", "127.0.0.1", "::1")
        if parsed.scheme not in ("https", "http") or not parsed.host or "@" in parsed.raw_authority:
            raise SpecError("DIGEST_SUBSCRIBER_CONTENT_URL must be https://host[:port], without user")
        if parsed.scheme == "http" and not is_local:
            raise SpecError("DIGEST_SUBSCRIBER_CONTENT_URL must begin with https://: addresses come that way")
        if not tokens:
            raise SpecError("DIGEST_SUBSCRIBER_CONTENT_URL needs DIGEST_CONTENT_TOKEN, which opens it")
        self._url, self._token, self._tls = url.rstrip("/"), tokens[0], tls_context(ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, operation_key: str) -> Frozen | Gone | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, keepalive_timeout=10),
                timeout=aiohttp.ClientTimeout(total=TIME_OUT),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        target = URL(f"{self._url}/content/{quote(operation_key, safe='')}", encoded=True)
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with self._session.get(target, headers=headers, allow_redirects=False) as answer:
                return _read(answer.status, operation_key, await _body(answer))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ContentUnavailableError(f"no content: {type(error).__name__}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > MAX_CONTENT:
            raise ContentUnavailableError("no content: too large")
        parts.append(part)
    return b"".join(parts)


def _read(status: int, operation_key: str, body: bytes) -> Frozen | Gone | None:
    try:
        said: Any = json.loads(body)
        word = said.get("content")
        if (status, word) == (404, "unknown"):
            return None
        if (status, word) == (410, "gone"):
            return Gone()
        if status == 200 and said["key"] == operation_key:
            document = base64.b64decode(said["document"], validate=True)
            digest, tenant, recipient = (said[name] for name in ("digest", "tenant", "recipient"))
            if all(isinstance(text, str) for text in (digest, tenant, recipient)):
                return Frozen(operation_key, digest, tenant, recipient, document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        pass
    raise ContentUnavailableError(f"no content: the content path answered {status}")


def routes(ledger: Ledger, tokens: Sequence[str]) -> list[Route]:
    """Return the content path over a ledger, for whoever has one of these tokens."""

    async def give(request: Request) -> Response:
        if not _is_known(request.headers.get("authorization", ""), tokens):
            return JSONResponse({"content": "refused"}, 401, {"WWW-Authenticate": "Bearer"})
        key = request.path_params["key"]
        found = (
            None if len(key) > MAX_KEY_LENGTH or "\0" in key else await run_in_threadpool(_find, ledger, key)
        )
        if found is None:
            return JSONResponse({"content": "unknown"}, 404)
        if isinstance(found, Gone):
            return JSONResponse({"content": "gone"}, 410)
        return JSONResponse(_plain(found), headers={"Cache-Control": "no-store"})

    return [Route("/content/{key:path}", give, methods=["GET"])]


def _plain(found: Frozen) -> dict[str, str]:
    return {
        "content": "found",
        "key": found.operation_key,
        "digest": found.digest,
        "tenant": found.tenant,
        "recipient": found.recipient,
        "document": base64.b64encode(found.document).decode("ascii"),
    }


def _is_known(header: str, tokens: Sequence[str]) -> bool:
    scheme, _, given = header.partition(" ")
    ours = [hashlib.sha256(token.encode()).digest() for token in tokens]
    theirs = hashlib.sha256(given.encode("utf-8", "replace")).digest()
    found = False
    for one in ours:  # all of them, so that the time tells nothing
        found |= hmac.compare_digest(one, theirs)
    return found and scheme.lower() == "bearer"


def _find(ledger: Ledger, operation_key: str) -> Frozen | Gone | None:
    with ledger.read() as conn:
        return frozen_content.find(conn, operation_key)
