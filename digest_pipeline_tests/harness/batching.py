"""A small period that goes out in batches, to the sandbox or to an emulated provider."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from queue import Queue
from typing import Any

from sqlalchemy import Row, select

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.lab.crash.cells import Can
from digest_pipeline.lab.crash.provider import SandboxProvider
from digest_pipeline.lab.crash.stage import Stage
from digest_pipeline.lab.providers.process import ProviderProcess
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.ledger.schema import send_batch
from digest_pipeline_tests.harness.delivering import Desk, frozen_desk, key_of
from digest_pipeline_tests.harness.raw_http import answer, raw_server

CREDENTIALS: Mapping[str, Mapping[str, str]] = {
    "resend": {"api_key": "re_Batch_1"},
    "postmark": {"server_token": "pm-batch-1"},
    "mailjet": {"api_key": "mj-batch", "secret_key": "mj-private"},
}
CAN: Mapping[str, Mapping[str, str]] = {
    "resend": {"look_up": "false"},
    "postmark": {"idempotency": "none"},
    "mailjet": {"idempotency": "none"},
}
"""What an emulated provider can do, as ``match`` has it."""

AT_ONCE = {"visibility_delay": "0s"}
"""An emulation's search shows what it accepted at once."""

ONE_PASS = {"sending": {"in_run_wait_seconds": 0}, "retry": {"base_seconds": 30, "cap_seconds": 30}}
"""Each run makes one pass: what it leaves is due only when time has passed."""


def provider(kind: str, folder: Path, **settings: Any) -> ProviderProcess:
    """Return an emulated provider, not started yet, that knows the credential of ``CREDENTIALS``."""
    credential = ":".join(CREDENTIALS[kind].values())
    return ProviderProcess(kind, folder / f"{kind}.db", api_key=credential, **settings)


@dataclass
class BatchDesk(Desk):
    """A desk whose gateway speaks to an emulated provider."""

    kind: str = "sandbox"

    def gateway(self, **settings: str) -> Gateway:
        if self.kind == "sandbox":
            return super().gateway(**settings)
        time_out = f"{self.digest.sending.timeout_seconds:g}s"
        quick = AT_ONCE if registry.KINDS[self.kind].capabilities.look_up else {}
        given = {"url": self.sandbox.url, "time_out": time_out, **CREDENTIALS[self.kind], **quick}
        return registry.create(self.kind, given | settings)

    def calls(self) -> list[list[str]]:
        """Return the operation keys of each send that arrived, call by call."""
        found: dict[int, list[str]] = {}
        for one in self.sandbox.control.arrivals():
            if one["route"] != "look_up":
                found.setdefault(one["request"], []).append(one["operation_key"])
        return [found[request] for request in sorted(found)]

    def sizes(self) -> list[int]:
        """Return how many messages each call carried."""
        return [len(call) for call in self.calls()]

    def times_offered(self) -> Counter[str]:
        """Return how often each key was offered."""
        return Counter(key for call in self.calls() for key in call)

    def batches(self) -> list[Row[Any]]:
        """Return the batches that were written down, in no order."""
        with self.ledger.read() as conn:
            return list(conn.execute(select(send_batch)))

    def address(self, number: int, recipient: str) -> None:
        """Change where a customer's message goes, although the manifest is sealed."""
        self.sql(
            "UPDATE manifest_entry SET recipient = :to WHERE ordinal = :n AND operation_key = :key",
            to=recipient,
            n=number,
            key=key_of(number),
        )


@contextmanager
def answering(status: int, body: Any) -> Iterator[str]:
    """Serve one JSON answer to whatever comes, on a thread of its own; yields the URL."""
    started: Queue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def serve() -> None:
        ended = asyncio.Event()
        async with raw_server([answer(status, json.dumps(body).encode())]) as server:
            started.put((server.url, asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    url, loop, ended = started.get(timeout=30)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)


@contextmanager
def batch_desk(
    folder: Path,
    url: str,
    process: SandboxProcess,
    kind: str = "sandbox",
    customers: int = 10,
    can: Mapping[str, str] | None = None,
    batch_size: int = 5,
    **changes: Any,
) -> Iterator[BatchDesk]:
    """Freeze a small period that goes out in batches."""
    sending = {"batch_size": batch_size, "lanes": 1, **changes.pop("sending", {})}
    can = can if can is not None else CAN.get(kind, {})
    with frozen_desk(folder, url, process, customers, can, sending=sending, **changes) as desk:
        yield BatchDesk(**{f.name: getattr(desk, f.name) for f in fields(desk)}, kind=kind)


class EmulatedProvider(SandboxProvider):
    """An emulated provider for the crash harness, which behaves as that provider documents."""

    kind: str

    def __init__(self, folder: Path) -> None:
        self.process = provider(self.kind, folder, latency_ms=20)

    def reset(self, can: Can) -> None:
        self.process.control.reset()

    def gateway(self, can: Can) -> tuple[str, Mapping[str, Any]]:
        secrets = {
            name: {"env": f"LAB_{self.kind.upper()}_{name.upper()}", "default": value}
            for name, value in CREDENTIALS[self.kind].items()
        }
        quick = AT_ONCE if can is Can.LOOK_UP else {}
        return self.kind, {"url": self.process.url, **secrets, **quick}


class ResendProvider(EmulatedProvider):
    kind = "resend"
    cans = frozenset({Can.REPLAYS})


class PostmarkProvider(EmulatedProvider):
    kind = "postmark"
    cans = frozenset({Can.LOOK_UP})


class BatchStage(Stage):
    """A stage whose periods go out in batches."""

    def write_spec(self, folder: Path, can: Can, **changes: Any) -> Path:
        sending = {"batch_size": 4, "concurrency": 2, **changes.pop("sending", {})}
        rate = {"per_second": 400, "burst": 150}
        return super().write_spec(folder, can, sending=sending, rate=rate, **changes)
