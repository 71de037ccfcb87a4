"""A frozen period, and a subscriber of its pushes: in this process, or as servers of their own.

desk = open_desk(3)
taker = Taker(desk)
assert taker.take(1).outcome == "complete"
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.delivery.run import prepare
from digest_pipeline.demo.push import Tls, served
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.gateways.https_push_body import message_id_of
from digest_pipeline.gateways.signing import Signer
from digest_pipeline.ledger import receipts
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.receipts import Receipt
from digest_pipeline.subscriber.content import Contents, LedgerContents
from digest_pipeline.subscriber.pushes import Push
from digest_pipeline.subscriber.receiver import Receiver
from digest_pipeline.subscriber.replies import Reply
from digest_pipeline_tests.gateways.stands_push import SECRET
from digest_pipeline_tests.harness.delivering import Desk, key_of
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT
from digest_pipeline_tests.harness.sandbox import API_KEY

SECONDS = 60


def hash_of(desk: Desk, number: int) -> str:
    return str(desk.row(number).payload_hash)


def push_of(desk: Desk, number: int, **changed: Any) -> Push:
    return replace(Push(key_of(number), hash_of(desk, number), "tiny_digest", "default"), **changed)


def receipt_of(ledger: Ledger, number: int) -> Receipt | None:
    with ledger.read() as conn:
        return receipts.read(conn, key_of(number))


@dataclass
class Taker:
    """Takes pushes in this process, on the desk's ledger, through the desk's sandbox."""

    desk: Desk
    contents: Contents | None = None
    environment: str = ENVIRONMENT
    prepared: set[str] = field(default_factory=set)

    def take(self, number: int, gateway: Gateway | None = None, **changed: Any) -> Reply:
        """Return the answer to one push."""
        (reply,) = self.take_all(push_of(self.desk, number, **changed), gateway=gateway)
        return reply

    def take_all(self, *pushes: Push, gateway: Gateway | None = None) -> list[Reply]:
        """Return the answers to pushes that come at once."""
        plan = SendPlan(self.desk.digest, (), gateway or self.desk.gateway(), "subscriber", "1")
        if plan.gate not in self.prepared:  # as a server does when it starts
            self.desk.ledger.transact(lambda conn: prepare(conn, plan))
            self.prepared.add(plan.gate)

        async def run() -> list[Reply]:
            contents = self.contents or LedgerContents(self.desk.ledger)
            receiver = Receiver(self.desk.ledger, {"tiny_digest": plan}, contents, self.environment)
            async with plan.gateway:
                return list(await asyncio.gather(*(receiver.take(one) for one in pushes)))

        return asyncio.run(run())

    def receipt(self, number: int) -> Receipt:
        found = receipt_of(self.desk.ledger, number)
        assert found is not None
        return found

    def arrivals(self, number: int) -> int:
        return self.desk.sandbox.oracle().attempts(key_of(number))

    def accepted(self, number: int) -> int:
        return sum(1 for _ in self.desk.sandbox.oracle().acceptances(key_of(number)))

    def pass_time(self, seconds: float) -> None:
        self.desk.pass_time(seconds)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def outcome(self) -> str:
        return str(json.loads(self.body)["outcome"])


@dataclass
class Server:
    """A server of ours that runs, asked over TLS that is verified."""

    url: str
    tls: Tls
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL: nothing more runs in it."""
        self.process.kill()
        self.process.wait(SECONDS)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Make one request on a connection of its own."""
        context = ssl.create_default_context(cafile=str(self.tls.ca_file))
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=SECONDS, context=context)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def push(self, body: bytes, secret: str = SECRET, at: datetime | None = None, **headers: str) -> Answer:
        """Send a signed push, with headers changed."""
        key = str(json.loads(body).get("key", ""))
        signed = Signer("secret", [secret]).headers(message_id_of(key), body, at or datetime.now(UTC))
        changed = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", "/push", body, {"Content-Type": "application/json", **signed, **changed})


def body_of(desk: Desk, number: int, **changed: Any) -> bytes:
    """Return the body of a push, written by hand."""
    period, customer = "2025-W10", f"customer-{number:03d}"
    fields = {
        "key": key_of(number),
        "digest": "tiny_digest",
        "period": period,
        "tenant": "default",
        "customer_id": customer,
        "payload_hash": hash_of(desk, number),
    }
    return json.dumps({**fields, **changed}).encode()


def variables_of(desk: Desk, folder: Path, **changed: str) -> dict[str, str]:
    """Return the environment of a subscriber that shares the desk's ledger and specification."""
    url = desk.ledger.url.render_as_string(hide_password=False)
    return {
        "DIGEST_HOME": str(folder / "home"),
        "DIGEST_ENVIRONMENT": ENVIRONMENT,
        "DIGEST_SPECS": str(folder),
        "DIGEST_LEDGER_URL": url,
        "DIGEST_SUBSCRIBER_SECRET": SECRET,
        "DIGEST_SANDBOX_URL": desk.sandbox.url,
        "DIGEST_SANDBOX_API_KEY": API_KEY,
        **changed,
    }


@contextmanager
def subscribing(
    folder: Path, tls: Tls, variables: Mapping[str, str], name: str = "subscriber"
) -> Iterator[Server]:
    """Run ``digest subscriber serve`` in a process of its own."""
    with served(["subscriber", "serve"], tls, folder / f"{name}.log", variables) as found:
        yield Server(found.url, tls, found.process)


@contextmanager
def giving_content(folder: Path, tls: Tls, variables: Mapping[str, str]) -> Iterator[Server]:
    """Run ``digest content serve`` in a process of its own."""
    with served(["content", "serve"], tls, folder / "content.log", variables) as found:
        yield Server(found.url, tls, found.process)


def push_gateway(server: Server, **settings: str) -> Gateway:
    """Return a gateway that pushes to a server, as a digest would have it."""
    own = {
        "url": server.url,
        "secret": SECRET,
        "ca_file": str(server.tls.ca_file),
        "allow_private": "localhost",
        "time_out": "20s",
    }
    return registry.create("https_push", own | settings)
