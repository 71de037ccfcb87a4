"""A subscriber that is none: it answers pushes as docs/push.md says, and fails on demand.

It shares no code with the gateway and verifies signatures by hand. Run as a module, it serves.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
from aiohttp import web

from digest_pipeline.lab.providers.calls import CallStore
from digest_pipeline.lab.providers.emulation import (
    Call,
    Emulation,
    Incoming,
    Refusal,
    Result,
    Route,
    json_answer,
)
from digest_pipeline.lab.providers.service import Service
from digest_pipeline.lab.sandbox.command import serve_command
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.provider import Provider
from digest_pipeline.lab.sandbox.server import serve_with
from digest_pipeline.lab.sandbox.settings import SandboxSettings

WORDS: dict[Refusal, tuple[int, dict[str, Any]]] = {
    Refusal.RECIPIENT: (422, {"outcome": "rejected", "class": "recipient", "suppressed": False}),
    Refusal.MALFORMED: (400, {"outcome": "refused"}),
    Refusal.CREDENTIAL: (401, {"outcome": "refused"}),
    Refusal.THROTTLED: (429, {"outcome": "throttled"}),
    Refusal.UNAVAILABLE: (503, {"outcome": "retry"}),
    Refusal.ERROR: (500, {"outcome": "error"}),
    Refusal.IN_FLIGHT: (409, {"outcome": "busy"}),
    Refusal.MISMATCH: (409, {"outcome": "integrity"}),
    Refusal.NO_ROUTE: (404, {"outcome": "refused"}),
}


class PushProvider(Emulation):
    """The receiving end of pushes."""

    name = "https_push"
    routes: ClassVar = {("POST", "/push"): Route.SEND}

    def knows(self, call: Call, credential: str) -> bool:
        key = base64.b64decode(credential.removeprefix("whsec_"))
        signed = f"{call.headers['webhook-id']}.{call.headers['webhook-timestamp']}.".encode() + call.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in call.headers["webhook-signature"].split(" ")

    def read(self, call: Call) -> list[Incoming] | Refusal:
        try:
            return [Incoming(json.loads(call.body)["key"], call.body, ["whom the content says"])]
        except (ValueError, TypeError, KeyError):
            return Refusal.MALFORMED

    def idempotency_key(self, call: Call) -> str | None:
        return call.headers["webhook-id"]

    def answer(self, call: Call, results: Sequence[Result]) -> web.Response:
        (result,) = results
        if result.refusal is not None:
            return self.refuse(call, result.refusal)
        return json_answer(200, {"outcome": "complete", "message_id": result.message_id, "replayed": False})

    def refuse(self, call: Call, refusal: Refusal) -> web.Response:
        status, body = WORDS[refusal]
        # Ugly on purpose: nothing of this may show up in an outcome.
        return json_answer(
            status, {**body, "message": f"{call.headers.get('webhook-signature')} {call.target}"}
        )


class PushProcess(SandboxProcess):
    """The server as a child process; ``secret`` is what it verifies with."""

    def __init__(self, store: Path, secret: str) -> None:
        super().__init__(store, SandboxSettings(api_key=secret))

    def _module(self) -> list[str]:
        return ["digest_pipeline_tests.gateways.push_provider"]


@click.command()
def _serve(store: Path, until_stdin_closes: bool, **options: Any) -> None:
    def ready(url: str) -> None:
        click.echo(json.dumps({"ready": True, "url": url, "store": str(store), "pid": os.getpid()}))

    def handler(settings: SandboxSettings, opened: CallStore) -> Any:
        return Service(Provider(settings, opened), PushProvider(), opened).dispatch

    serve_with(lambda: CallStore(store), handler, SandboxSettings(**options), ready, until_stdin_closes)


_serve.params += serve_command.params

if __name__ == "__main__":
    _serve()
