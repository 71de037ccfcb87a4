"""What a gateway makes of one answer, from a server that says what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.outcomes import AccountRefused, Ambiguous, FailureClass, Refused
from digest_pipeline_tests.gateways.stands import digest
from digest_pipeline_tests.harness.raw_http import RawServer, answer, raw_server

RECIPIENT = Refused(FailureClass.RECIPIENT, "")
SUPPRESSED = Refused(FailureClass.RECIPIENT, "", suppressed=True)
CONTENT = Refused(FailureClass.CONTENT, "")
ACCOUNT = AccountRefused("")
DOUBT = Ambiguous("")
INTEGRITY = Ambiguous("", integrity=True)


def said(status: int, body: Any, headers: str = "") -> bytes:
    """Return an answer with a JSON body."""
    return answer(status, json.dumps(body).encode(), headers)


def plain(outcome: Any) -> Any:
    """Return an outcome without its detail, which is for people."""
    return replace(outcome, detail="") if hasattr(outcome, "detail") else outcome


class Answering:
    """A kind of gateway with its settings, to be led to servers that say what they are told to."""

    def __init__(self, kind: str, settings: Mapping[str, str]) -> None:
        self._kind, self._settings = kind, settings

    def ask(self, act: Callable[[Any], Awaitable[Any]], *answers: bytes) -> tuple[Any, RawServer]:
        """Return what ``act`` returns for an entered gateway, and what the server saw."""

        async def run() -> tuple[Any, RawServer]:
            async with raw_server(answers) as server:
                made: Any = registry.create(self._kind, {**self._settings, "url": server.url})
                async with made as gateway:
                    return await act(gateway), server

        return asyncio.run(run())

    def send(self, *answers: bytes, envelope: Envelope | None = None) -> Any:
        """Return the outcome of one message."""
        return self.ask(lambda gateway: gateway.send(envelope or digest()), *answers)[0]

    def send_batch(self, envelopes: Sequence[Envelope], *answers: bytes) -> Any:
        """Return the outcomes of one call, without their details where it was no refusal as a whole."""
        found = self.ask(lambda gateway: gateway.send_batch(envelopes, "batch-1"), *answers)[0]
        return [plain(outcome) for outcome in found] if isinstance(found, list) else found

    def look_up(self, key: str, *answers: bytes) -> Any:
        """Return what is found under a key."""
        return self.ask(lambda gateway: gateway.look_up(key), *answers)[0]

    def sent_body(self, envelope: Envelope, reply: bytes) -> tuple[str, Any]:
        """Return the head and the JSON body of the request for one message."""
        _, server = self.ask(lambda gateway: gateway.send(envelope), reply)
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        return head.decode(), json.loads(body)
