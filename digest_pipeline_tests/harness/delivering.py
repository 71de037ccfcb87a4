"""A small frozen period on a real ledger, the sandbox it is sent to, and time that can pass at once.

with frozen_desk(tmp_path, ledger_url, sandbox, customers=5) as desk:
    desk.deliver()
    assert desk.counts() == {"sent": 5}
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select

from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.delivery.run import Delivered, deliver, prepare
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.keys import operation_key
from digest_pipeline.lab.nursery import Job, Nursery
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.time_shift import pass_time
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import attempt, delivery
from digest_pipeline.spec import Digest
from digest_pipeline_tests.harness.ledgers import (
    LABEL,
    PERIOD,
    delivery_row,
    frozen_period,
    migrated,
    run_ledger_sql,
    tiny_source,
    tiny_spec,
)
from digest_pipeline_tests.harness.sandbox import API_KEY

MICROS = 1_000_000

REPLAYS: Mapping[str, str] = {"look_up": "false"}
LOOK_UP: Mapping[str, str] = {"idempotency": "none"}
NEITHER: Mapping[str, str] = {"idempotency": "none", "look_up": "false"}
BOTH: Mapping[str, str] = {}
"""What a gateway can do, as settings; ``match`` makes a sandbox behave like that too."""


def key_of(number: int) -> str:
    """Return the operation key of the n-th customer, whose ordinal is n."""
    return operation_key("tiny_digest", LABEL, "default", f"customer-{number:03d}")


def match(sandbox: SandboxProcess, can: Mapping[str, str]) -> None:
    """Make the sandbox behave as the gateway's settings say."""
    sandbox.change(
        idempotency=can.get("idempotency", "replays"), look_up=can.get("look_up", "true") == "true"
    )


def sending_spec(folder: Path, sandbox: SandboxProcess, can: Mapping[str, str], **changes: Any) -> Digest:
    """Return the tiny digest, quick to send and to retry, with such a gateway; ``changes`` merge."""
    quick: dict[str, Any] = {
        "gateway": {"settings": {"url": sandbox.url, "api_key": API_KEY, **can}},
        "sending": {
            "lanes": 2,
            "concurrency": 8,
            "timeout_seconds": 5,
            "lease_seconds": 60,
            "in_run_wait_seconds": 3,
            "run_limit_seconds": 45,
        },
        "retry": {"base_seconds": 0.05, "cap_seconds": 0.1, "max_attempts": 3},
        "cleanup": {"delay_hours": 0},
    }
    for name, change in changes.items():
        old = quick.get(name)
        quick[name] = {**old, **change} if isinstance(old, dict) and isinstance(change, dict) else change
    return tiny_spec(folder, **quick)


@dataclass
class Desk:
    """One frozen period and everything that sends it."""

    ledger: Ledger
    digest: Digest
    manifest_ids: tuple[int, ...]
    sandbox: SandboxProcess

    def gateway(self, **settings: str) -> Gateway:
        """Return the digest's gateway; ``settings`` change it."""
        limits = {"time_out": f"{self.digest.sending.timeout_seconds:g}s"}
        return registry.create("sandbox", limits | self.digest.gateway.resolved() | settings)

    def plan(self, gateway: Gateway | None = None, run_id: str = "run-1", sender: str = "s1") -> SendPlan:
        return SendPlan(self.digest, self.manifest_ids, gateway or self.gateway(), run_id, sender)

    def deliver(self, gateway: Gateway | None = None, run_id: str = "run-1", sender: str = "s1") -> Delivered:
        """Do what one run does."""
        plan = self.plan(gateway, run_id, sender)
        self.ledger.transact(lambda conn: prepare(conn, plan))
        return deliver(self.ledger, plan)

    def deliver_meanwhile(self, **keywords: Any) -> Meanwhile:
        """Start a run on a thread of its own."""
        return Meanwhile(self, keywords)

    def script(self, fault: Fault, *numbers: int, **rule: Any) -> None:
        """Let a fault hit these customers' first requests."""
        self.sandbox.control.script(Rule(fault, keys=[key_of(n) for n in numbers], **rule))

    def row(self, number: int) -> Row[Any]:
        return delivery_row(self.ledger, self.manifest_ids[0], number)

    def rows(self) -> list[Row[Any]]:
        with self.ledger.read() as conn:
            return list(conn.execute(select(delivery).order_by(delivery.c.manifest_id, delivery.c.ordinal)))

    def counts(self) -> dict[str, int]:
        """Return how many deliveries are in each state."""
        return dict(Counter(row.state for row in self.rows()))

    def attempts(self, number: int | None = None) -> list[Row[Any]]:
        """Return the attempts of one delivery, or of all, oldest first.

        Claims that were released before the wire are left out: how many there are is a matter of pace.
        """
        query = select(attempt).where(attempt.c.outcome != "released").order_by(attempt.c.token)
        if number is not None:
            query = query.where(attempt.c.ordinal == number)
        with self.ledger.read() as conn:
            return list(conn.execute(query))

    def sql(self, statement: str, **parameters: Any) -> Any:
        return run_ledger_sql(self.ledger, statement, **parameters)

    def pass_time(self, seconds: float) -> None:
        """Move every instant in the ledger back: as if that much time had passed."""
        pass_time(self.ledger, seconds)

    def close_window(self) -> None:
        """Let the delivery window be over."""
        self.sql("UPDATE manifest SET window_closes_at = 1, window_opens_at = 0")

    def change(self, **sending: Any) -> None:
        """Change how the digest is sent from now on."""
        changed = self.digest.sending.model_copy(update=sending)
        self.digest = self.digest.model_copy(update={"sending": changed})

    def as_process(self, ledger: Ledger) -> Desk:
        """Return the same desk on connections of its own, as another process would have."""
        return replace(self, ledger=ledger)


class Meanwhile:
    """A run on a thread of its own; ``result`` waits for it and raises what it raised."""

    def __init__(self, desk: Desk, keywords: Mapping[str, Any]) -> None:
        self._desk, self._keywords = desk, keywords
        self._delivered: Delivered | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._delivered = self._desk.deliver(**self._keywords)
        except BaseException as error:  # noqa: BLE001 - `result` raises it on the caller's thread
            self._error = error

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def result(self, timeout: float = 60.0) -> Delivered:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError("the run has not ended")
        if self._error is not None:
            raise self._error
        assert self._delivered is not None
        return self._delivered


@contextmanager
def frozen_desk(
    folder: Path,
    url: str,
    sandbox: SandboxProcess,
    customers: int = 5,
    can: Mapping[str, str] = BOTH,
    **changes: Any,
) -> Iterator[Desk]:
    """Freeze and compose a small period on the ledger at ``url``."""
    match(sandbox, can)
    digest = sending_spec(folder, sandbox, can, **changes)
    with migrated(url) as ledger, tiny_source(folder, customers) as source:
        ids = frozen_period(ledger, digest, PERIOD, source)
        yield Desk(ledger, digest, ids, sandbox)


@contextmanager
def empty_desk(
    folder: Path,
    url: str,
    sandbox: SandboxProcess,
    customers: int,
    can: Mapping[str, str] = BOTH,
    **changes: Any,
) -> Iterator[Desk]:
    """Prepare a small period that nobody has frozen yet: a process does that."""
    match(sandbox, can)
    digest = sending_spec(folder, sandbox, can, **changes)
    tiny_source(folder, customers).close()
    with migrated(url) as ledger:
        yield Desk(ledger, digest, (), sandbox)


def assert_once_each(desk: Desk, numbers: range) -> None:
    """The provider accepted each of these customers' keys exactly once, and no other."""
    oracle = desk.sandbox.oracle()
    assert list(oracle.duplicates()) == []
    assert list(oracle.accepted_keys()) == sorted(key_of(n) for n in numbers)
    assert oracle.recipients_other_than_one() == 0


def send_from(nursery: Nursery, folder: Path, url: str, senders: int) -> list[dict[str, Any]]:
    """Let this many processes deliver the tiny digest of ``folder`` at once; return what each of them did."""
    jobs = [
        Job(
            ledger=url,
            spec=str(folder / "tiny_digest.yaml"),
            label=LABEL,
            run_id=f"run-{number}",
            sender=f"s{number}",
            report=str(folder / f"{number}.json"),
            only_deliver=True,
        )
        for number in range(senders)
    ]
    return [child.report() for child in [nursery.start(job) for job in jobs]]
