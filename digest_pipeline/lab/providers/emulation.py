"""What one emulated provider declares: its routes, how it reads a call, and how it words each answer."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from aiohttp import web

INVALID_DOMAIN = "@bounce.example"
"""Recipients there are refused as invalid."""
SUPPRESSED_DOMAIN = "@suppressed.example"
"""Recipients there are on the provider's own suppression list."""
SPOILING_DOMAIN = "@spoils.example"
"""A message to there makes the provider refuse its whole call as malformed."""
UNVERIFIED_DOMAIN = "unverified.example"
"""Senders there are not verified with the provider."""


class Route(StrEnum):
    """What a request asks for. A call with one message and one with several are both a send."""

    SEND = "send"
    LOOK_UP = "look_up"


class Refusal(StrEnum):
    """Why something is not done. Each provider has its own words for them."""

    RECIPIENT = "recipient"
    SUPPRESSED = "suppressed"
    MALFORMED = "malformed"
    SENDER = "sender"
    CREDENTIAL = "credential"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    ERROR = "error"
    IN_FLIGHT = "in_flight"
    MISMATCH = "mismatch"
    DUPLICATE = "duplicate"
    NO_ROUTE = "no_route"


class Call(NamedTuple):
    """One request as it came. ``headers`` ignore case; ``path`` and ``query`` are decoded, ``target`` is not."""

    method: str
    path: str
    target: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Incoming(NamedTuple):
    """One message of a call. ``recipients`` are all of its addresses, copies included.

    ``key`` is our operation key, which the store counts by: read from the ``X-Operation-Key`` header of
    the message. ``reference`` is what the provider itself can be asked by, where that is another text.
    """

    key: str
    body: bytes
    recipients: Sequence[str]
    refusal: Refusal | None = None
    reference: str = ""


class Result(NamedTuple):
    """What became of one message; ``place`` counts from 0 in the call."""

    place: int
    incoming: Incoming
    message_id: str
    refusal: Refusal | None


class Emulation(ABC):
    """One provider. Each method takes or makes wire text only; what is accepted, ``service`` decides."""

    name: ClassVar[str]
    routes: ClassVar[Mapping[tuple[str, str], Route]]
    settings: ClassVar[Mapping[str, Any]] = {}
    """How its ``SandboxSettings`` differ from the defaults: idempotency, key_lifetime, retention ..."""

    def route(self, call: Call) -> Route | None:
        """Return what the call asks for, or None for an unknown route."""
        return self.routes.get((call.method, call.path))

    @abstractmethod
    def knows(self, call: Call, credential: str) -> bool:
        """Whether the call proves the credential (``user:password`` where there are two parts)."""

    @abstractmethod
    def read(self, call: Call) -> list[Incoming] | Refusal:
        """Return the messages of a call in order, or why the whole call can't be taken."""

    def idempotency_key(self, call: Call) -> str | None:
        """Return the key under which the provider recognises this call, or None."""
        return None

    @abstractmethod
    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        """Return the answer to a call that was judged message by message."""

    @abstractmethod
    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        """Return the answer to a call of which nothing was taken."""

    def message_id(self, serial: str) -> str:
        """Return an id in the provider's own form; ``serial`` is never used twice."""
        return serial

    def asked(self, call: Call) -> str:
        """Return the reference that a look-up asks for, or an empty string."""
        return ""

    def listed(self, call: Call, reference: str, message_ids: Sequence[str]) -> web.Response:
        """Return the answer to a look-up. A provider that cannot be asked has no such route."""
        return self.refuse(call, Refusal.NO_ROUTE)


def spoiled_by(recipients: Sequence[str], sender: str) -> Refusal | None:
    """Return what the reserved domains of this module ask for."""
    if UNVERIFIED_DOMAIN in sender:
        return Refusal.SENDER
    for address in recipients:
        if address.endswith(INVALID_DOMAIN) or address.count("@") != 1:
            return Refusal.RECIPIENT
        if address.endswith(SUPPRESSED_DOMAIN):
            return Refusal.SUPPRESSED
        if address.endswith(SPOILING_DOMAIN):
            return Refusal.MALFORMED
    return None


def json_answer(status: int, body: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON answer."""
    data = json.dumps(body).encode()
    return web.Response(status=status, body=data, content_type="application/json", headers=headers)


def same_bytes(message: Any) -> bytes:
    """Return bytes that are equal for equal parsed messages: what a store compares copies by."""
    return json.dumps(message, sort_keys=True).encode()


def uuid_of(serial: str) -> str:
    """Return a text in the form of a UUID, always the same for one serial."""
    digits = hashlib.md5(serial.encode(), usedforsecurity=False).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
