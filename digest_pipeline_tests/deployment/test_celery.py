"""Senders on several machines: Celery workers that share nothing but broker, database and provider.

The machines are network namespaces with disks of their own, so nothing can pass between them but by TCP.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from digest_pipeline.delivery.gate_keeping import prepare_gate
from digest_pipeline.delivery.plan import gate_name
from digest_pipeline.eligibility.source import Source
from digest_pipeline.installation import make_gateway
from digest_pipeline.keys import operation_key
from digest_pipeline_tests.deployment.servers import cluster, write_customers
from digest_pipeline_tests.harness import network, redis
from digest_pipeline_tests.harness.celery import Cluster, Program, wait_until
from digest_pipeline_tests.harness.ledgers import frozen_period
from digest_pipeline_tests.harness.network import Network

MISSING = network.reason_for_none() or (None if redis.PROGRAM else "redis-server is not installed")
# Namespaces need root and a kernel that lets them be made; `.ci/run` installs the programs where it may.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

SENDERS = ("send_batches_1", "send_batches_2")
CUSTOMERS = 240
RATE, BURST = 40, 11
SENDING = {"timeout_seconds": 2, "lease_seconds": 14, "in_run_wait_seconds": 300, "run_limit_seconds": 600}
LIMITS = {"rate": {"per_second": RATE, "burst": BURST}}
WEEKS = {"2025-W10": "2025-03-05", "2025-W11": "2025-03-12", "2025-W12": "2025-03-19"}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("deployed")
    digests = {
        "tiny_digest": LIMITS | {"sending": {**SENDING, "senders": 2}},
        "lone_digest": LIMITS | {"sending": {**SENDING, "senders": 1}},
    }
    with Network(folder) as machines, cluster(folder, machines, digests) as found:
        write_customers(found.customers, CUSTOMERS, WEEKS.values())
        found.await_workers(found.add_worker("one", 1), found.add_worker("two", 2))
        yield found


class Doors:
    """The rate gate, shut while senders arrive, so that they all begin to send at the same moment."""

    def __init__(self, deployed: Cluster, patch: pytest.MonkeyPatch) -> None:
        self._deployed = deployed
        for name in ("DIGEST_SANDBOX_URL", "DIGEST_SANDBOX_API_KEY"):
            patch.setenv(name, deployed.variables[name])
        name = gate_name(make_gateway(deployed.digests["tiny_digest"]))
        with deployed.ledger.write() as conn:
            prepare_gate(conn, name, RATE, BURST)
        deployed.sql(
            "UPDATE rate_gate SET closed_until = (extract(epoch FROM clock_timestamp()) + 250) * 1000000"
        )

    def open(self) -> None:
        self._deployed.sql("UPDATE rate_gate SET closed_until = 0")


@pytest.fixture
def doors(deployed: Cluster, monkeypatch: pytest.MonkeyPatch) -> Doors:
    return Doors(deployed, monkeypatch)


def _freeze(deployed: Cluster, name: str, label: str) -> None:
    digest = deployed.digests[name]
    with Source(deployed.customers) as source:
        frozen_period(deployed.ledger, digest, digest.period(label), source)


def _accepted(deployed: Cluster, name: str, label: str) -> Counter[str]:
    prefix = operation_key(name, label, "default", "x")[:-1]
    keys = (one.operation_key for one in deployed.sandbox.oracle().acceptances())
    return Counter(key for key in keys if key.startswith(prefix))


def _everybody_once(name: str, label: str) -> Counter[str]:
    return Counter(operation_key(name, label, "default", f"customer-{n}") for n in range(1, CUSTOMERS + 1))


def _await_senders(deployed: Cluster, run: Program, *steps: str) -> None:
    wait_until(
        "every sender has begun",
        lambda: all(deployed.times_begun(run, step) for step in steps),
        deployed.told,
    )


def _addresses(deployed: Cluster) -> set[str]:
    """From where the ledger's sessions come."""
    query = (
        "SELECT DISTINCT host(client_addr) FROM pg_stat_activity "
        "WHERE datname = current_database() AND client_addr IS NOT NULL"
    )
    return {row[0] for row in deployed.sql(query)}


def _states(deployed: Cluster, name: str, label: str) -> dict[str, int]:
    query = (
        "SELECT d.state, count(*) FROM delivery AS d JOIN manifest AS m ON m.id = d.manifest_id "
        "WHERE m.digest = :digest AND m.period = :period GROUP BY d.state"
    )
    return {row[0]: row[1] for row in deployed.sql(query, digest=name, period=label)}


def _assert_shared_rate_held(deployed: Cluster) -> None:
    oracle = deployed.sandbox.oracle()
    for seconds in (0.25, 1.0, 3.0, 10.0):
        assert oracle.max_arrivals(seconds) <= RATE * seconds + BURST, f"in {seconds} s"


def test_two_machines_send_a_period_together_and_share_only_broker_database_and_provider(
    deployed: Cluster, doors: Doors
) -> None:
    assets = (
        "eligible_customers",
        "digest_rows",
        "delivery_outcomes",
        "reconciliation_report",
        "cleaned_digest_rows",
    )
    run = deployed.launch("tiny_digest", "2025-W10", *assets)
    _await_senders(deployed, run, *SENDERS)
    wait_until("both reach the ledger by TCP", lambda: {"10.0.1.2", "10.0.2.2"} <= _addresses(deployed))
    doors.open()
    assert run.wait(), deployed.told()

    assert _accepted(deployed, "tiny_digest", "2025-W10") == _everybody_once("tiny_digest", "2025-W10")
    assert _states(deployed, "tiny_digest", "2025-W10") == {"cleaned": CUSTOMERS}
    _assert_shared_rate_held(deployed)
    claimed = Counter(row[0].partition("/")[2] for row in deployed.sql("SELECT claimed_by FROM attempt"))
    assert set(claimed) == set(SENDERS), "both have sent"
    assert {deployed.hosts_of(run, step)[0] for step in SENDERS} == {"one", "two"}
    assert any('to queue "senders"' in (entry.user_message or "") for entry in deployed.logs(run))
    for name in ("one", "two", "desk"):
        disk = deployed.network.disk_of(name)
        assert list((disk / "dagster").rglob("storage/**/*")) == [], "no step hands a file to another"
    assert [p.name for p in (deployed.network.disk_of("desk") / "digest").iterdir()] == []


def test_the_work_of_a_machine_that_is_lost_goes_to_another_and_nobody_gets_two(
    deployed: Cluster, doors: Doors
) -> None:
    _freeze(deployed, "tiny_digest", "2025-W11")
    run = deployed.launch("tiny_digest", "2025-W11", "delivery_outcomes")
    _await_senders(deployed, run, *SENDERS)
    lost = next(step for step in SENDERS if deployed.hosts_of(run, step)[-1] == "one")
    begun = len(deployed.hosts_of(run, lost))
    doors.open()
    wait_until("some are accepted", lambda: len(_accepted(deployed, "tiny_digest", "2025-W11")) > 40)
    deployed.lose("one")
    at_the_loss = len(_accepted(deployed, "tiny_digest", "2025-W11"))
    three = deployed.add_worker("three", 3)
    assert run.wait(), deployed.told()
    deployed.await_workers(three)

    assert at_the_loss < CUSTOMERS, "it was lost in the middle"
    assert _accepted(deployed, "tiny_digest", "2025-W11") == _everybody_once("tiny_digest", "2025-W11")
    assert _states(deployed, "tiny_digest", "2025-W11") == {"sent": CUSTOMERS}
    assert deployed.sql("SELECT count(*) FROM attempt WHERE outcome = 'expired'")[0][0] > 0, "it held claims"
    redelivered = deployed.hosts_of(run, lost)[begun:]
    assert redelivered, "its task was given to somebody else"
    assert "one" not in redelivered
    _assert_shared_rate_held(deployed)


def test_a_step_delivered_to_two_machines_at_once_sends_nothing_twice(
    deployed: Cluster, doors: Doors
) -> None:
    _freeze(deployed, "lone_digest", "2025-W12")
    run = deployed.launch("lone_digest", "2025-W12", "delivery_outcomes")
    # The broker waits no longer for the first one's word: it sends the task again while that still works.
    wait_until(
        "two machines have begun the same step",
        lambda: deployed.times_begun(run, "send_batches_1") == 2,
        deployed.told,
    )
    assert len(set(deployed.hosts_of(run, "send_batches_1"))) == 2
    doors.open()
    assert run.wait(), deployed.told()
    wait_until("both have told what they sent", lambda: len(_shares(deployed, run)) >= 2, deployed.told)

    assert _accepted(deployed, "lone_digest", "2025-W12") == _everybody_once("lone_digest", "2025-W12")
    assert _states(deployed, "lone_digest", "2025-W12") == {"sent": CUSTOMERS}
    assert sum(_shares(deployed, run)) == CUSTOMERS
    assert min(_shares(deployed, run)[:2]) > 0, "both have sent"
    _assert_shared_rate_held(deployed)


def _shares(deployed: Cluster, run: Program) -> list[int]:
    """How many messages each attempt of a run's sending steps says it got accepted."""
    said = (entry.user_message for entry in deployed.logs(run))
    return [int(found[1]) for line in said if (found := re.search(r"accepted (\d+) in", line))]
