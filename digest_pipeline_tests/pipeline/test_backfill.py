"""Many weeks at once, and a run that was cancelled in the middle: judged by the provider's own record."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import select

from digest_pipeline.ledger.schema import delivery, manifest
from digest_pipeline_tests.harness.children import start_child
from digest_pipeline_tests.harness.rim import Rim, failures
from digest_pipeline_tests.harness.weekly_run import weekly_job

WEEKS = ("2025-W10", "2025-W11", "2025-W12", "2025-W13")
DAYS = ("2025-03-05", "2025-03-12", "2025-03-19", "2025-03-26")
SHORT_WINDOW = {"delivery_window": {"closes_after_hours": 72}, "days": DAYS}
PATIENCE = 300.0


def once_each(rim: Rim, *labels: str, customers: int = 5) -> dict[str, int]:
    return {rim.key_of(n, label): 1 for label in labels for n in range(1, customers + 1)}


def frozen(rim: Rim, label: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return what a period's manifest and its deliveries are, to the byte, with who cleaned them and when."""
    with rim.ledger.read() as conn:
        headers = conn.execute(select(manifest).where(manifest.c.id.in_(rim.ids(label))))
        rows = conn.execute(
            select(delivery).where(delivery.c.manifest_id.in_(rim.ids(label))).order_by(delivery.c.ordinal)
        )
        return [tuple(row) for row in headers], [tuple(row) for row in rows]


def backfill(rim: Rim, **late: object) -> None:
    """One run per partition, as the daemon would start them."""
    for label in WEEKS:
        assert failures(rim.materialise(label, **late)) == {}, label


def test_a_backfill_leaves_complete_weeks_to_the_byte_as_they_were_and_sends_the_missing_ones(open_rim):
    rim = open_rim(days=DAYS)
    for label in WEEKS[:2]:
        rim.materialise(label)
    before = {label: frozen(rim, label) for label in WEEKS[:2]}
    attempts = len(rim.attempts())
    backfill(rim)
    assert rim.accepted() == once_each(rim, *WEEKS)
    assert {label: frozen(rim, label) for label in WEEKS[:2]} == before
    assert len(rim.attempts()) == attempts + 2 * 5
    told = [
        (rim.shown("delivery_outcomes", one)["sent_now"], rim.shown("delivery_outcomes", one)["already_sent"])
        for one in WEEKS
    ]
    assert told == [(0, 5), (0, 5), (5, 0), (5, 0)]


def test_a_backfill_over_closed_windows_sends_nothing_until_it_says_why(open_rim):
    rim = open_rim(**SHORT_WINDOW)
    rim.materialise(WEEKS[0], allow_late=True, reason="the first week")
    before = frozen(rim, WEEKS[0])[1]
    backfill(rim)
    assert rim.accepted() == once_each(rim, WEEKS[0])
    assert frozen(rim, WEEKS[0])[1] == before
    assert [rim.shown("delivery_outcomes", one)["held"] for one in WEEKS] == [0, 5, 5, 5]
    backfill(rim, allow_late=True, reason="the provider was down for a month", by="ann")
    assert rim.accepted() == once_each(rim, *WEEKS)
    assert [rim.shown("delivery_outcomes", one)["sent_now"] for one in WEEKS] == [0, 5, 5, 5]
    signed = {(one.period, one.who) for one in rim.actions() if one.reason.startswith("the provider")}
    assert signed >= {(label, "ann") for label in WEEKS[1:]}


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance that two processes share."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as found:
        yield found


@pytest.fixture
def cancelled(instance: dg.DagsterInstance) -> Callable[[Rim, bool], dg.DagsterRun]:
    """Start a week in another process, cancel it among its sends as Dagster does, and return its run."""

    def cancel(rim: Rim, by_a_person: bool) -> dg.DagsterRun:
        rim.sandbox.change(latency_ms=100)
        child = start_child(
            "digest_pipeline_tests.harness.weekly_run", "run_week", rim.period().partition_key
        )
        try:
            _wait_for(lambda: rim.sandbox.oracle().accepted_count() >= 3 or child.poll() is not None)
            (run,) = instance.get_runs()
            if by_a_person:
                # What the launcher's terminate does before it sends the signal.
                instance.report_run_canceling(run)
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=PATIENCE)
        finally:
            child.kill()
            child.communicate()
        rim.sandbox.change(latency_ms=0)
        (run,) = instance.get_runs()
        return run

    return cancel


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("by_a_person", "status", "how"),
    [
        (True, dg.DagsterRunStatus.CANCELED, "from_failure"),
        (True, dg.DagsterRunStatus.CANCELED, "all_steps"),
        (False, dg.DagsterRunStatus.FAILURE, "from_failure"),
    ],
    ids=["cancelled-from_failure", "cancelled-all_steps", "interrupted-from_failure"],
)
def test_a_run_cancelled_among_its_sends_is_finished_by_executing_it_again_and_nobody_gets_two(
    open_rim, cancelled, instance, by_a_person, status, how
):
    rim = open_rim(customers=12, sending={"concurrency": 1, "lanes": 1})
    run = cancelled(rim, by_a_person)
    assert run.status is status
    sent = rim.sandbox.oracle().accepted_count()
    assert 3 <= sent < 12, "it was not among the sends"
    rim.end_leases()
    options = (
        dg.ReexecutionOptions.from_failure(run.run_id, instance)
        if how == "from_failure"
        else dg.ReexecutionOptions(parent_run_id=run.run_id)
    )
    again = dg.execute_job(
        dg.reconstructable(weekly_job),
        instance,
        tags={"dagster/partition": rim.period().partition_key},
        reexecution_options=options,
    )
    assert failures(again) == {}
    assert rim.accepted() == once_each(rim, "2025-W10", customers=12)
    assert rim.states() == {"cleaned": 12}
