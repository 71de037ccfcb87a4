"""What is compared: our delivery loop, and the least that posts the same bytes. Each in a process of its own."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

import aiohttp
from sqlalchemy import and_, select

from digest_pipeline import telemetry
from digest_pipeline.content.message import unpack
from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.delivery.run import deliver, prepare
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.http import HttpLimits, Wire, open_session
from digest_pipeline.gateways.sandbox import SandboxGateway, serialise
from digest_pipeline.lab.bench.stage import RUN, bench_digest
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import content, delivery, manifest_entry

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leg:
    """One contestant's part of one round: this manifest of this ledger, to this provider."""

    ledger_url: str
    manifest_id: int
    provider_url: str
    api_key: str
    concurrency: int


@dataclass(frozen=True, slots=True)
class Ran:
    """What one leg took."""

    seconds: float
    cpu_seconds: float
    peak_rss_mb: float


def in_child(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a fresh process, so that its peak memory is its own; return what it returns."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


def peak_rss_mb() -> float:
    """Return the most memory this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def measured(work: Callable[[], object]) -> Ran:
    """Call ``work`` and return what it took; memory counts from the process's start."""
    began, cpu = time.monotonic(), time.process_time()
    work()
    return Ran(time.monotonic() - began, time.process_time() - cpu, peak_rss_mb())


def run_ours(leg: Leg) -> Ran:
    """Deliver a manifest: gate, claims, settles, attempts, everything a production run does."""
    telemetry.configure_logging("WARNING")
    digest = bench_digest(leg.concurrency)
    limits = _limits(leg)
    gateway = SandboxGateway(leg.provider_url, leg.api_key, limits=limits)
    plan = SendPlan(digest, (leg.manifest_id,), gateway, RUN, "sender-1")
    with Ledger(leg.ledger_url) as ledger:
        ledger.transact(lambda conn: prepare(conn, plan))
        return measured(lambda: deliver(ledger, plan))


def run_bare(leg: Leg) -> Ran:
    """Post the same bytes from memory, with as many requests under way: no ledger, no gate, no retry."""
    with Ledger(leg.ledger_url) as ledger:
        requests = list(_requests(ledger, leg.manifest_id))
    return measured(lambda: asyncio.run(_post_all(leg, requests)))


async def _post_all(leg: Leg, requests: list[tuple[str, bytes]]) -> None:
    left = iter(requests)
    async with open_session(_limits(leg)) as session, asyncio.TaskGroup() as workers:
        for _ in range(leg.concurrency):
            workers.create_task(_post_each(session, leg, left))


async def _post_each(session: aiohttp.ClientSession, leg: Leg, left: Iterator[tuple[str, bytes]]) -> None:
    for key, body in left:
        headers = {
            "Authorization": f"Bearer {leg.api_key}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
        }
        url = f"{leg.provider_url}/v1/messages"
        async with session.post(url, data=body, headers=headers, trace_request_ctx=Wire()) as answer:
            await answer.read()
            answer.raise_for_status()


def _limits(leg: Leg) -> HttpLimits:
    return HttpLimits(connections=leg.concurrency)


def _requests(ledger: Ledger, manifest_id: int) -> Iterator[tuple[str, bytes]]:
    e, d = manifest_entry.c, delivery.c
    query = (
        select(e.operation_key, e.recipient, content.c.document, d.payload_hash)
        .join(delivery, and_(d.manifest_id == e.manifest_id, d.ordinal == e.ordinal))
        .join(content, and_(content.c.manifest_id == e.manifest_id, content.c.ordinal == e.ordinal))
        .where(e.manifest_id == manifest_id)
        .order_by(e.ordinal)
    )
    with ledger.read() as conn:
        for row in conn.execute(query):
            message = unpack(row.document, row.payload_hash)
            yield row.operation_key, serialise(Envelope(row.operation_key, row.recipient, message))
