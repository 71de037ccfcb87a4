"""A sandbox provider for tests, and the few things every test with one needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from digest_pipeline.content.message import Message
from digest_pipeline.gateways.base import BatchRefused, Capabilities, Envelope, Idempotency
from digest_pipeline.gateways.http import HttpLimits
from digest_pipeline.gateways.sandbox import DEFAULT_CAPABILITIES, SandboxGateway
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import CHANGEABLE, SandboxSettings

API_KEY = "sandbox-test-key-1f0d"
PATIENT = HttpLimits(total=timedelta(seconds=20), connect=timedelta(seconds=5))
HASTY = HttpLimits(total=timedelta(seconds=0.4), connect=timedelta(seconds=5))
"""For providers that stay silent on purpose."""

KEYLESS = Capabilities(
    look_up=True, visibility_delay=timedelta(0), look_up_retention=timedelta(days=30), batch_size=500
)
"""For a sandbox whose idempotency is off."""

T = TypeVar("T")


@contextmanager
def running_sandbox(folder: Path, **settings: Any) -> Iterator[SandboxProcess]:
    """Run a sandbox of one's own, with its store in the folder."""
    with SandboxProcess(folder / "sandbox.db", SandboxSettings(api_key=API_KEY, **settings)) as process:
        yield process


def as_new(process: SandboxProcess) -> SandboxProcess:
    """Return a shared sandbox with an empty store, no faults and default switches."""
    defaults = SandboxSettings().public()
    process.change(**{name: defaults[name] for name in CHANGEABLE})
    process.control.reset()
    return process


def envelope(customer: str = "1842", text: str = "Hello", recipient: str | None = None) -> Envelope:
    """Return a small digest of one customer."""
    return Envelope(
        operation_key=f"customer_digest:2026-W42:customer-{customer}",
        recipient=recipient or f"reader-{customer}@example.test",
        message=Message(
            sender="Digest <digest@sender.test>",
            to_name=f"Reader {customer}",
            subject="Your week",
            text=text,
            html=f'<p class="a">{text} é</p>',
            headers=(("List-Id", "<weekly.sender.test>"),),
        ),
    )


def envelopes(count: int) -> list[Envelope]:
    """Return digests of that many customers."""
    return [envelope(str(number)) for number in range(count)]


def gateway_to(
    process: SandboxProcess,
    capabilities: Capabilities = DEFAULT_CAPABILITIES,
    limits: HttpLimits = PATIENT,
    api_key: str = API_KEY,
) -> SandboxGateway:
    """Return a gateway to a sandbox, not entered yet."""
    return SandboxGateway(process.url, api_key, capabilities, limits)


def with_gateway(gateway: SandboxGateway, act: Callable[[SandboxGateway], Awaitable[T]]) -> T:
    """Enter the gateway on a loop of its own and return what ``act`` returns."""

    async def run() -> T:
        async with gateway as entered:
            return await act(entered)

    return asyncio.run(run())


def send(gateway: SandboxGateway, *sent: Envelope) -> list[Any]:
    """Send one after the other. The outcomes are untyped: a test says itself which kind it expects."""

    async def each(entered: SandboxGateway) -> list[Any]:
        return [await entered.send(one) for one in sent]

    return with_gateway(gateway, each)


def send_batch(gateway: SandboxGateway, sent: Sequence[Envelope]) -> list[Any]:
    """Send all in one call, which the provider must not refuse as a whole."""

    async def all_at_once(entered: SandboxGateway) -> list[Any]:
        outcomes = await entered.send_batch(sent)
        assert not isinstance(outcomes, BatchRefused)
        return list(outcomes)

    return with_gateway(gateway, all_at_once)


def look_up(gateway: SandboxGateway, key: str) -> Any:
    """Ask about one key."""
    return with_gateway(gateway, lambda entered: entered.look_up(key))


def keyless(process: SandboxProcess, limits: HttpLimits = PATIENT) -> SandboxGateway:
    """Switch the sandbox's idempotency off and return a gateway that knows."""
    process.change(idempotency=Idempotency.NONE)
    return gateway_to(process, KEYLESS, limits)
