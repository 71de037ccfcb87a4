"""A sender is killed at each named point; another one recovers as production would; the provider judges.

The killed child freezes, composes, sends and cleans a whole period. Nothing of it is tidied up: time
passes until its leases are over, and the next child simply does the same work again.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import func, select

from digest_pipeline import faults
from digest_pipeline.faults import Point
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.schema import content, delivery
from digest_pipeline_tests.harness.delivering import (
    LOOK_UP,
    NEITHER,
    REPLAYS,
    assert_once_each,
    empty_desk,
    key_of,
)
from digest_pipeline_tests.harness.ledgers import LABEL
from digest_pipeline_tests.harness.nursery import End, Job

pytestmark = pytest.mark.crash

CUSTOMERS = 60
EVERYBODY = range(1, CUSTOMERS + 1)
KILLED = End(signal=signal.SIGKILL)

ASKING = (Point.DURING_LOOK_UP, Point.BEFORE_EVIDENCE_COMMIT, Point.AFTER_EVIDENCE_COMMIT)
AROUND_THE_CALL = (
    Point.AFTER_CLAIM_COMMIT,
    Point.BEFORE_PROVIDER_CALL,
    Point.AFTER_PROVIDER_CALL,
    Point.BEFORE_SETTLE_COMMIT,
)
# In the middle of the work where a point is passed more than once.
HITS = {
    Point.AFTER_GATE: 2,
    Point.AFTER_CLAIM_COMMIT: 2,
    Point.BEFORE_PROVIDER_CALL: 20,
    Point.AFTER_PROVIDER_CALL: 20,
    Point.BEFORE_SETTLE_COMMIT: 2,
    Point.AFTER_SETTLE_COMMIT: 2,
}


class Work:
    """One period, the processes that work on it, and what must hold of it."""

    def __init__(self, desk, nursery, folder, url):
        self.desk, self._nursery, self._folder, self._url, self._runs = desk, nursery, folder, url, 0

    def start(self, fault=None):
        self._runs += 1
        run = f"run-{self._runs}"
        return self._nursery.start(
            Job(
                ledger=self._url,
                spec=str(self._folder / "tiny_digest.yaml"),
                label=LABEL,
                run_id=run,
                sender="s1",
                report=str(self._folder / f"{run}.json"),
                fault=fault,
            )
        )

    def kill_at(self, point):
        assert self.start(f"{point}:kill:{HITS.get(point, 1)}").wait() == KILLED, "the point was not reached"
        self.nothing_is_gone_without_proof()

    def recover(self, runs=4):
        """Start runs, as a schedule does, until one leaves nothing to do; time passes in between."""
        for _ in range(runs):
            self.desk.pass_time(self.desk.digest.sending.lease_seconds + 31)
            self.start().report()
            if self.is_done():
                return

    def is_done(self):
        return all(row.due_at is None and row.state not in ("claimed", "sent") for row in self.desk.rows())

    def nothing_is_gone_without_proof(self):
        with self.desk.ledger.read() as conn:
            kept = set(conn.execute(select(content.c.ordinal)).scalars())
            rows = conn.execute(select(delivery)).all()
        for row in rows:
            assert (row.state == "cleaned") is (row.ordinal not in kept)
            assert row.state != "cleaned" or (row.proof and row.cleaned_by)

    def everybody_is_accounted_for(self):
        with self.desk.ledger.read() as conn:
            ids = reads.manifest_ids(conn, "tiny_digest", LABEL)
            summary = reads.summarise(conn, ids)
        assert (len(ids), summary.selected, summary.entries) == (1, CUSTOMERS, CUSTOMERS)
        assert sum(summary.states.values()) == CUSTOMERS
        assert summary.duplicates == 0
        return {state: count for state, count in summary.states.items() if count}

    def all_sent_once_and_cleaned(self):
        assert_once_each(self.desk, EVERYBODY)
        assert self.everybody_is_accounted_for() == {"cleaned": CUSTOMERS}
        self.nothing_is_gone_without_proof()
        with self.desk.ledger.read() as conn:
            assert conn.execute(select(func.count()).select_from(content)).scalar_one() == 0


@pytest.fixture
def open_period(tmp_path, ledger_url, sandbox, nursery):
    def opened(can=REPLAYS, **changes):
        sandbox.change(latency_ms=20)
        # Slow enough for several claims and several groups of results.
        changes = {"rate": {"per_second": 150, "burst": 50}, **changes}
        desk = context.enter_context(empty_desk(tmp_path, ledger_url, sandbox, CUSTOMERS, can, **changes))
        return Work(desk, nursery, tmp_path, ledger_url)

    with ExitStack() as context:
        yield opened


@pytest.mark.parametrize("point", [point for point in Point if point not in ASKING])
def test_killed_at_any_point_everybody_still_gets_it_once(open_period, point):
    period = open_period(REPLAYS)
    period.kill_at(point)
    period.recover()
    period.all_sent_once_and_cleaned()


@pytest.mark.parametrize("point", [*ASKING, *AROUND_THE_CALL])
def test_with_look_ups_only_everybody_still_gets_it_once(open_period, point):
    period = open_period(LOOK_UP, sending={"timeout_seconds": 1})
    if point in ASKING:
        desk = period.desk
        desk.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[key_of(n) for n in (5, 25)]))
        desk.sandbox.control.script(Rule(Fault.RESET_BEFORE_ACCEPT, keys=[key_of(n) for n in (15, 35)]))
    period.kill_at(point)
    period.recover(6)
    period.all_sent_once_and_cleaned()


@pytest.mark.parametrize("point", AROUND_THE_CALL)
def test_with_neither_what_was_under_way_is_held_and_the_rest_is_sent(open_period, point):
    period = open_period(NEITHER)
    period.kill_at(point)
    claimed = {row.ordinal for row in period.desk.rows() if row.state == "claimed"}
    assert claimed
    period.recover()
    states = period.everybody_is_accounted_for()
    assert states == {"cleaned": CUSTOMERS - len(claimed), "unknown": len(claimed)}
    for row in period.desk.rows():
        assert (row.state == "unknown") is (row.ordinal in claimed)
        assert (row.hold_reason == "no_evidence") is (row.ordinal in claimed)
    oracle = period.desk.sandbox.oracle()
    assert list(oracle.duplicates()) == []
    accepted = set(oracle.accepted_keys())
    assert {key_of(n) for n in EVERYBODY if n not in claimed} <= accepted
    assert all(oracle.attempts(key_of(n)) <= 1 for n in EVERYBODY)
    period.nothing_is_gone_without_proof()


@pytest.mark.parametrize(
    "point", [Point.AFTER_CLAIM_COMMIT, Point.BEFORE_PROVIDER_CALL, Point.AFTER_PROVIDER_CALL]
)
def test_a_sender_that_was_stopped_past_its_lease_repeats_nothing_when_it_wakes(open_period, point):
    """DUP-25. With one lane and at the first pass, the sender holds no lock when it stops."""
    period = open_period(REPLAYS, sending={"lanes": 1})
    stopped = period.start(f"{point}:stop:1")
    assert stopped.wait() == End(signal=signal.SIGSTOP, stopped=True)
    claimed = [row.token for row in period.desk.rows() if row.state == "claimed"]
    assert claimed
    period.recover()
    period.all_sent_once_and_cleaned()

    stopped.send(signal.SIGCONT)
    assert stopped.report()["lost_claims"] == len(claimed)
    period.all_sent_once_and_cleaned()
    late = {attempt.token: attempt for attempt in period.desk.attempts() if attempt.token in claimed}
    assert sorted(late) == sorted(claimed)
    assert all(one.outcome == "expired" and one.late_outcome for one in late.values())


def test_a_provider_that_is_killed_and_comes_back_during_a_run_accepts_everybody_once(open_period):
    period = open_period(REPLAYS, retry={"connect_failures_to_halt": 100_000, "max_attempts": 100})
    running = period.start()
    period.desk.sandbox.control.wait(accepted=20)
    period.desk.sandbox.restart()
    running.report()
    period.recover()
    period.all_sent_once_and_cleaned()


def test_the_environment_variable_kills_a_process_at_the_point_it_names():
    code = "from digest_pipeline import faults\nfor _ in range(3):\n    faults.reach(faults.Point.AFTER_GATE)"
    faulty = os.environ | {"DIGEST_FAULT": "after_gate:kill:3"}
    assert subprocess.run([sys.executable, "-c", code], env=faulty, check=False).returncode == -signal.SIGKILL
    other = os.environ | {"DIGEST_FAULT": "after_gate:kill:4"}
    assert subprocess.run([sys.executable, "-c", code], env=other, check=False).returncode == 0


def test_every_point_is_reached_from_exactly_one_place():
    sources = Path(faults.__file__).parent.rglob("*.py")
    found = [name for path in sources for name in re.findall(r"Point\.([A-Z_]+)", path.read_text("utf-8"))]
    assert sorted(found) == sorted(point.name for point in Point)
