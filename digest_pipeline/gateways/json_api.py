"""What gateways to JSON mail APIs share: one session, one account, and matching answers to messages."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.base import BatchRefused, Capabilities, Envelope
from digest_pipeline.gateways.envelopes import KEY_HEADER, unsendable
from digest_pipeline.gateways.http import Answer, HttpLimits, exchange, open_session
from digest_pipeline.gateways.kinds import require_credential
from digest_pipeline.outcomes import Ambiguous, NotSent, Outcome, Refused

Fields = Mapping[str, Any]


class JsonApi:
    """One account at one host; the adapter adds the requests and the reading of answers.

    ``secrets`` are the credential, in its parts; they are in no repr and in no detail of an outcome.
    """

    name: str

    def __init__(
        self,
        url: str,
        secrets: Sequence[str],
        capabilities: Capabilities,
        limits: HttpLimits | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        host = _checked_host(self.name, url)
        require_credential(self.name, secrets)
        self._url, self._secrets, self._now = url.rstrip("/"), tuple(secrets), now
        self._limits = limits or HttpLimits()
        self.capabilities = capabilities
        self.account = account_of(host, *secrets)
        self._session: aiohttp.ClientSession | None = None

    def unsendable(self, envelope: Envelope) -> Refused | None:
        """Return why an envelope must not reach the wire, or None."""
        return unsendable(envelope, smtputf8=self.capabilities.smtputf8)

    def hide(self, *envelopes: Envelope) -> tuple[str, ...]:
        """Return what must not stand in a detail: the credential, and whom the call is about."""
        people = [text for e in envelopes for text in (e.recipient, e.message.to_name)]
        return (*self._secrets, ":".join(self._secrets), *people)

    async def call(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer | NotSent | Ambiguous:
        """Make one request once. ``target`` is the path and query, already encoded."""
        if self._session is None:
            raise RuntimeError("a gateway is used inside `async with`")
        # `encoded`: the query is ours, and yarl would decode parts of an operation key.
        return await exchange(self._session, method, URL(self._url + target, encoded=True), headers, body)

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
        return f"{type(self).__name__}(account={self.account!r})"


class BatchJsonApi(JsonApi, ABC):
    """A ``JsonApi`` that takes several messages in one call."""

    async def send_batch(
        self, envelopes: Sequence[Envelope], batch_key: str | None = None
    ) -> list[Outcome] | BatchRefused:
        """Offer several messages in one call; the outcomes are in the order of the envelopes.

        What can't be sent is left out of the call, so that the same envelopes always make the same call.
        """
        if len({envelope.operation_key for envelope in envelopes}) != len(envelopes):
            raise ValueError("a batch holds each operation key once")
        refused = [self.unsendable(envelope) for envelope in envelopes]
        left = [e for e, why in zip(envelopes, refused, strict=True) if why is None]
        found = await self.send_all(left, batch_key) if left else []
        if isinstance(found, BatchRefused):
            # What never reached the wire comes back as it is when its own half is sent.
            return found
        outcomes = iter(found)
        return [why or next(outcomes) for why in refused]

    @abstractmethod
    async def send_all(
        self, envelopes: Sequence[Envelope], batch_key: str | None
    ) -> list[Outcome] | BatchRefused:
        """Make the one call for envelopes that can be sent, at least one; one outcome for each."""


def _checked_host(kind: str, url: str) -> str:
    """Return the host of a base URL. Raises SpecError, also where a credential would travel in clear."""
    parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.user or parsed.password:
        raise SpecError(f"the {kind} gateway's url must be https://host[:port] without credentials")
    if parsed.scheme == "http" and parsed.host not in ("localhost", "127.0.0.1", "::1"):
        raise SpecError(f"the {kind} gateway's url must begin with https://; http is for this machine only")
    return parsed.host


def whole_call(outcome: Outcome, count: int) -> list[Outcome] | BatchRefused:
    """Return what an answer about a call as a whole means for its messages.

    A refusal never becomes a verdict about one of several messages: it may be another's fault.
    """
    return BatchRefused(outcome) if isinstance(outcome, Refused) else [outcome] * count


def matched(
    names: Sequence[str], items: Sequence[Any], name_of: Callable[[Any], str | None]
) -> list[Any | None]:
    """Return the item about each message, None where there is no certain one.

    For answers whose documented order is that of the call, with items that may name their message
    (``name_of`` None: this one doesn't). The order counts while nothing contradicts it; where something
    does, only an item that names a message which no other item or message shares is matched.
    """
    said = [name_of(item) for item in items]
    if len(items) == len(names) and all(
        name is None or name == sent for name, sent in zip(said, names, strict=True)
    ):
        return list(items)
    by_name = {name: item for name, item in zip(said, items, strict=True) if said.count(name) == 1}
    return [by_name.get(name) if names.count(name) == 1 else None for name in names]


def account_of(host: str, *credential: str) -> str:
    """Return the short digest under which the ledger knows an account."""
    return hashlib.sha256("\0".join((host, *credential)).encode()).hexdigest()[:12]


def serialise(body: Any) -> bytes:
    """Return the JSON of a request: the same bytes for the same body, on every machine."""
    return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


def carried(envelope: Envelope, left_out: frozenset[str]) -> dict[str, str]:
    """Return the headers of a message but for those (in lower case) that the provider writes itself.

    The operation key is always among them.
    """
    headers = {name: value for name, value in envelope.message.headers if name.lower() not in left_out}
    if KEY_HEADER.lower() not in {name.lower() for name in headers}:
        headers[KEY_HEADER] = envelope.operation_key
    return headers


def header(envelope: Envelope, name: str) -> str:
    """Return the value of a header of the message, or an empty string."""
    return next((value for found, value in envelope.message.headers if found.lower() == name.lower()), "")


def text_of(fields: Fields, name: str) -> str:
    """Return a field where it is text, else an empty string."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""
