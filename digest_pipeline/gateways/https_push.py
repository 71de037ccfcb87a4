"""The gateway to a subscriber: another process, often of another team, that sends the mail itself.

A push names a frozen message by its key and hash (docs/push.md); the subscriber fetches the content over a
path of its own. It is signed as Standard Webhooks ask for: the same body and ``webhook-id`` on every repeat,
timestamp and signature fresh. A subscriber keeps every key in its own ledger, so a repeat inside
``key_lifetime`` gets the first decision again.

The account is host and path alone, so that nothing unknown is held because the secret was rotated.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.base import Capabilities, Envelope, Idempotency
from digest_pipeline.gateways.envelopes import unsendable
from digest_pipeline.gateways.http import Answer, HttpLimits, exchange, open_session
from digest_pipeline.gateways.https_push_answers import verdict
from digest_pipeline.gateways.https_push_body import message_id_of, push_body
from digest_pipeline.gateways.https_push_network import Guard, checked_url, tls_context
from digest_pipeline.gateways.json_api import account_of
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, http_limits, required
from digest_pipeline.gateways.signing import Signer
from digest_pipeline.outcomes import AccountRefused, LookUp, LookUpFailed, NotSent, Outcome

CAPABILITIES = Capabilities(idempotency=Idempotency.REPLAYS, key_lifetime=timedelta(days=30))


class HttpsPushGateway:
    """Pushes to one subscriber at ``url``. ``guard`` decides which addresses it may connect to."""

    name = "https_push"

    def __init__(
        self,
        url: URL,
        signer: Signer,
        guard: Guard,
        capabilities: Capabilities = CAPABILITIES,
        limits: HttpLimits | None = None,
        ca_file: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._target = URL(str(url).rstrip("/") + "/push", encoded=True)
        self._signer, self._guard, self._now = signer, guard, now
        self._limits, self._tls = limits or HttpLimits(), tls_context(ca_file)
        self.capabilities = capabilities
        self.account = account_of(url.host or "", url.raw_path.rstrip("/"))
        self._session: aiohttp.ClientSession | None = None

    async def send(self, envelope: Envelope) -> Outcome:
        """Offer one message to the subscriber, once."""
        if refused := unsendable(envelope, smtputf8=self.capabilities.smtputf8):
            return refused
        if self._session is None:
            raise RuntimeError("a gateway is used inside `async with`")
        body = push_body(envelope)
        signed = self._signer.headers(message_id_of(envelope.operation_key), body, self._now())
        refusals = self._guard.refusals
        headers = {"Content-Type": "application/json", **signed}
        answer = await exchange(self._session, "POST", self._target, headers, body)
        if isinstance(answer, NotSent) and self._guard.refusals > refusals:
            return AccountRefused("the url leads to a private address: allow_private names what may be one")
        return verdict(answer, self._now()) if isinstance(answer, Answer) else answer

    async def look_up(self, operation_key: str) -> LookUp:
        """A subscriber is not asked: a repeat of the push gets its decision."""
        return LookUpFailed("a subscriber can't be asked by operation key")

    async def __aenter__(self) -> Self:
        self._session = open_session(self._limits, socket_factory=self._guard.socket, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def __repr__(self) -> str:
        return f"HttpsPushGateway(account={self.account!r})"


def _create(settings: Settings, capabilities: Capabilities) -> HttpsPushGateway:
    url = checked_url(required("https_push", settings, "url"))
    secrets = [required("https_push", settings, "secret"), settings.get("previous_secret", "")]
    allowed = [one.strip() for one in settings.get("allow_private", "").split(",") if one.strip()]
    if url.scheme == "http" and not allowed:
        raise SpecError("the https_push gateway's url must begin with https://; http needs allow_private")
    guard = Guard(url.host or "", allowed, loopback_only=url.scheme == "http")
    signer = Signer("the https_push gateway's secret", [secret for secret in secrets if secret])
    return HttpsPushGateway(
        url, signer, guard, capabilities, http_limits(settings), settings.get("ca_file", "")
    )


KIND = Kind(
    summary="a subscriber over HTTPS, which sends the mail itself: signed pushes without content",
    capabilities=CAPABILITIES,
    settings={
        "url": "base URL of the subscriber, https://host[:port]; pushes go to /push under it",
        "secret": "that signs, whsec_... (Standard Webhooks)",
        "previous_secret": "that signs beside it while the secret is rotated",
        "ca_file": "certificates of the authorities that the subscriber's is checked by; the system's unless given",
        "allow_private": "hosts or networks, separated by commas, that may be private addresses; http:// to loopback only",
        **LIMIT_SETTINGS,
    },
    factory=_create,
    secrets=frozenset({"secret", "previous_secret"}),
)
