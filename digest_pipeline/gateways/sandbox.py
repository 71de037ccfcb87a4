"""The gateway to the sandbox provider, an HTTP mail API (docs/sandbox.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.base import BatchKey, BatchRefused, Capabilities, Envelope, Idempotency
from digest_pipeline.gateways.envelopes import unsendable
from digest_pipeline.gateways.http import Answer, HttpLimits, exchange, open_session
from digest_pipeline.gateways.kinds import (
    LIMIT_SETTINGS,
    Kind,
    Settings,
    http_limits,
    require_credential,
    required,
)
from digest_pipeline.gateways.sandbox_answers import by_key, item_verdict, look_up_result, verdict
from digest_pipeline.outcomes import (
    Ambiguous,
    LookUp,
    LookUpFailed,
    NotSent,
    Outcome,
    Refused,
)

MAX_BATCH = 500

DEFAULT_CAPABILITIES = Capabilities(
    idempotency=Idempotency.REPLAYS,
    key_lifetime=timedelta(hours=24),
    look_up=True,
    visibility_delay=timedelta(0),
    look_up_retention=timedelta(days=30),
    batch_size=MAX_BATCH,
    batch_key=BatchKey.PER_MESSAGE,
)


class SandboxGateway:
    """Sends to one sandbox at ``url``. ``capabilities`` must say what that server's switches say."""

    name = "sandbox"

    def __init__(
        self,
        url: str,
        api_key: str,
        capabilities: Capabilities = DEFAULT_CAPABILITIES,
        limits: HttpLimits | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.user or parsed.password:
            raise SpecError("the sandbox gateway's url must be http(s)://host[:port] without credentials")
        require_credential(self.name, [api_key])
        self._url, self._api_key, self._now = url.rstrip("/"), api_key, now
        self._limits = limits or HttpLimits()
        self.capabilities = capabilities
        self.account = hashlib.sha256(f"{parsed.host}\0{api_key}".encode()).hexdigest()[:12]
        self._session: aiohttp.ClientSession | None = None

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message, once."""
        if refused := unsendable(envelope, smtputf8=self.capabilities.smtputf8):
            return refused
        headers = {"Content-Type": "application/json", "X-Operation-Key": envelope.operation_key}
        if self.capabilities.idempotency is not Idempotency.NONE:
            headers["Idempotency-Key"] = envelope.operation_key
        answer = await self._exchange("POST", "/v1/messages", serialise(envelope), headers)
        if not isinstance(answer, Answer):
            return answer
        replayed = answer.headers.get("Idempotent-Replayed") == "true"
        return verdict(answer, answer.fields(), replayed, self._now(), self._hide(envelope))

    async def send_batch(
        self, envelopes: Sequence[Envelope], batch_key: str | None = None
    ) -> list[Outcome] | BatchRefused:
        """Offer up to 500 messages in one call; the outcomes are in the order of the envelopes.

        Verdicts are matched by operation key. One that is missing, unreadable or given twice is
        Ambiguous; a refusal of the whole call never becomes a verdict about one message.
        """
        if len({envelope.operation_key for envelope in envelopes}) != len(envelopes):
            raise ValueError("a batch holds each operation key once")
        outcomes = {
            e.operation_key: refused
            for e in envelopes
            if (refused := unsendable(e, smtputf8=self.capabilities.smtputf8))
        }
        left = [envelope for envelope in envelopes if envelope.operation_key not in outcomes]
        found = await self._send_lines(left) if left else {}
        if isinstance(found, BatchRefused):
            # What never reached the wire comes back as it is when its own half is sent.
            return found
        return [outcomes.get(e.operation_key) or found[e.operation_key] for e in envelopes]

    async def _send_lines(self, envelopes: Sequence[Envelope]) -> Mapping[str, Outcome] | BatchRefused:
        body = b"\n".join(serialise(envelope) for envelope in envelopes)
        headers = {"Content-Type": "application/x-ndjson"}
        answer = await self._exchange("POST", "/v1/messages/batch", body, headers)
        keys = [envelope.operation_key for envelope in envelopes]
        if not isinstance(answer, Answer):
            return dict.fromkeys(keys, answer)
        if answer.status != 200:
            whole = verdict(answer, answer.fields(), False, self._now(), (self._api_key,))
            if isinstance(whole, Refused):
                return BatchRefused(whole)
            return dict.fromkeys(keys, whole)
        items = by_key(answer)
        return {
            e.operation_key: item_verdict(items.get(e.operation_key), self._now(), self._hide(e))
            for e in envelopes
        }

    def _hide(self, envelope: Envelope) -> tuple[str, ...]:
        return (self._api_key, envelope.recipient, envelope.message.to_name)

    async def look_up(self, operation_key: str) -> LookUp:
        """Ask whether the key was accepted."""
        answer = await self._exchange("GET", f"/v1/messages?key={quote(operation_key, safe='')}", None, {})
        if not isinstance(answer, Answer):
            return LookUpFailed(answer.detail)
        return look_up_result(answer, operation_key, self._now())

    async def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer | NotSent | Ambiguous:
        if self._session is None:
            raise RuntimeError("a gateway is used inside `async with`")
        authorised = {"Authorization": f"Bearer {self._api_key}", **headers}
        # `encoded`: the query is ours, and yarl would decode parts of an operation key.
        return await exchange(self._session, method, URL(self._url + path, encoded=True), authorised, body)

    async def __aenter__(self) -> Self:
        self._session = open_session(self._limits)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def __repr__(self) -> str:
        return f"SandboxGateway(account={self.account!r})"


def serialise(envelope: Envelope) -> bytes:
    """Return the request body: the same bytes for the same envelope, on every machine."""
    message = envelope.message
    body = {
        "from": message.sender,
        "to": [{"email": envelope.recipient, "name": message.to_name}],
        "subject": message.subject,
        "text": message.text,
        "html": message.html,
        "headers": [{"name": name, "value": value} for name, value in message.headers],
        "metadata": {"operation_key": envelope.operation_key},
    }
    return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


def _create(settings: Settings, capabilities: Capabilities) -> SandboxGateway:
    url, api_key = (required("sandbox", settings, name) for name in ("url", "api_key"))
    return SandboxGateway(url, api_key, capabilities, http_limits(settings))


KIND = Kind(
    summary="the sandbox provider: an HTTP mail API that records what it accepts",
    capabilities=DEFAULT_CAPABILITIES,
    settings={
        "url": "base URL, e.g. http://127.0.0.1:8025",
        "api_key": "of no worth outside this machine, so it may stand in the specification",
        **LIMIT_SETTINGS,
    },
    factory=_create,
)
