"""What the cases need beside the harness: customers of one's own, a provider that says what it is told to,
work done by processes, and the command in front of the same ledger.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

from digest_pipeline.eligibility.source import Source
from digest_pipeline.lab.nursery import Child, Job, Nursery
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.operations.decisions import Order
from digest_pipeline_tests.harness.command import Shell
from digest_pipeline_tests.harness.delivering import BOTH, Desk, key_of, match, sending_spec
from digest_pipeline_tests.harness.ledgers import (
    ENVIRONMENT,
    LABEL,
    frozen_period,
    migrated,
    source_url,
    tiny_source,
    write_customers,
)
from digest_pipeline_tests.harness.raw_http import RawServer, raw_server
from digest_pipeline_tests.harness.sandbox import API_KEY

NAMED = ("--digest", "tiny_digest", "--period", LABEL)


@contextmanager
def desk_for(
    folder: Path,
    url: str,
    sandbox: SandboxProcess,
    customers: Sequence[Mapping[str, Any]],
    label: str = LABEL,
    can: Mapping[str, str] = BOTH,
    **changes: Any,
) -> Iterator[Desk]:
    """Freeze and compose the period of these customers on the ledger at ``url``."""
    match(sandbox, can)
    digest = sending_spec(folder, sandbox, can, **changes)
    tiny_source(folder, 0).close()
    write_customers(folder, customers)
    with migrated(url) as ledger, Source(source_url(folder)) as source:
        ids = frozen_period(ledger, digest, digest.period(label), source)
        yield Desk(ledger, digest, ids, sandbox)


class Workers:
    """Processes that each do the whole of a period, as its run would, or only its delivery."""

    def __init__(self, nursery: Nursery, folder: Path, url: str, label: str = LABEL) -> None:
        self._nursery, self._folder, self._url, self._label, self._count = nursery, folder, url, label, 0

    def start(self, fault: str | None = None, *, only_deliver: bool = False) -> Child:
        self._count += 1
        run = f"run-{self._count}"
        job = Job(
            ledger=self._url,
            spec=str(self._folder / "tiny_digest.yaml"),
            label=self._label,
            run_id=run,
            sender="s1",
            report=str(self._folder / f"{run}.json"),
            fault=fault,
            only_deliver=only_deliver,
        )
        return self._nursery.start(job)


@contextmanager
def provider_that_says(*answers: bytes) -> Iterator[RawServer]:
    """Serve these answers in turn, the last one for ever, beside whatever runs in this thread."""
    started: Queue[tuple[RawServer, Callable[[], object]]] = Queue()

    async def serve() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        async with raw_server(answers) as server:
            started.put((server, lambda: loop.call_soon_threadsafe(ended.set)))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    server, end = started.get(timeout=30)
    try:
        yield server
    finally:
        end()
        thread.join(30)


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition was not met in time")
        time.sleep(0.02)


def shell_before(folder: Path, url: str, sandbox: SandboxProcess | None = None, **more: str) -> Shell:
    """Return the command, in front of a desk's ledger and specification."""
    variables = {
        "DIGEST_HOME": str(folder / "home"),
        "DIGEST_LEDGER_URL": url,
        "DIGEST_SPECS": str(folder),
        "DIGEST_ENVIRONMENT": ENVIRONMENT,
        "DIGEST_SOURCE_URL": source_url(folder),
        "DIGEST_SANDBOX_API_KEY": API_KEY,
    }
    if sandbox is not None:
        variables["DIGEST_SANDBOX_URL"] = sandbox.url
    return Shell(folder, variables | more)


def order(desk: Desk, *numbers: int, reason: str = "the outage is over") -> Order:
    """Return a person's order about these customers."""
    keys = tuple(key_of(number) for number in numbers)
    return Order(desk.digest, desk.digest.period(LABEL), keys, "ann", reason)


def sends(desk: Desk, number: int) -> list[dict[str, Any]]:
    """Return every request that offered this customer's message, as the provider saw it."""
    return [one for one in desk.sandbox.control.arrivals(key_of(number)) if one["route"] == "send"]
