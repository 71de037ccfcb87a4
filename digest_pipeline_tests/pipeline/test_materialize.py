"""What a materialisation does, and does not do twice: on both engines, against the real sandbox."""

from typing import Any

import dagster as dg
import pytest

from digest_pipeline import faults
from digest_pipeline.defs.names import ASSETS
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline_tests.harness.ledgers import LABEL, customer, run_sql, write_customers
from digest_pipeline_tests.harness.rim import Rim, failures
from digest_pipeline_tests.harness.weekly_run import weekly_job

# Where nothing depends on the engine.
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
WEEKS = {
    "2025-W10": "2025-03-05",
    "2025-W11": "2025-03-12",
    "2025-W12": "2025-03-19",
    "2025-W13": "2025-03-26",
    "2025-W14": "2025-04-02",
}
FIVE = {"days": list(WEEKS.values())}


def everybody_once(rim: Rim, *labels: str, customers: int = 5) -> bool:
    expected = {rim.key_of(n, label): 1 for label in labels for n in range(1, customers + 1)}
    return rim.accepted() == expected


def test_one_job_takes_a_period_from_selection_to_cleanup(open_rim):
    rim = open_rim()
    done = rim.materialise()
    assert failures(done) == {}
    assert everybody_once(rim, LABEL)
    assert rim.states() == {"cleaned": 5}
    assert all(rim.is_materialised(asset) for asset in ASSETS)
    assert all(check.passed for check in done.get_asset_check_evaluations())
    shown = rim.shown("delivery_outcomes")
    assert (shown["status"], shown["eligible"], shown["sent_now"], shown["already_sent"]) == (
        "complete",
        5,
        5,
        0,
    )
    assert (shown["waiting"], shown["duplicates"], shown["coverage"]) == (0, 0, 1.0)
    assert rim.shown("eligible_customers")["frozen_now"] is True
    assert rim.shown("digest_rows")["composed_now"] is True
    assert rim.shown("cleaned_digest_rows")["cleaned_now"] == 5
    report = rim.shown("reconciliation_report")
    assert (report["balanced"], report["eligible"], report["provider_asked"]) == (1, 5, 5)


def test_materialising_a_period_again_sends_nothing_and_says_so(open_rim):
    rim = open_rim()
    rim.materialise()
    done = rim.materialise()
    assert failures(done) == {}
    assert everybody_once(rim, LABEL)
    shown = rim.shown("delivery_outcomes")
    assert (shown["sent_now"], shown["already_sent"], shown["status"]) == (0, 5, "complete")
    assert rim.shown("eligible_customers")["frozen_now"] is False
    assert rim.shown("digest_rows")["composed_now"] is False
    assert rim.shown("cleaned_digest_rows")["cleaned_now"] == 0


def test_customers_who_come_after_the_freeze_are_drift_and_get_nothing(open_rim):
    """DUP-02."""
    rim = open_rim()
    rim.materialise()
    write_customers(rim.folder, [customer(6)])
    run_sql(rim.folder, "UPDATE customers SET email = 'other@example.test' WHERE id = 'customer-001'")
    run_sql(rim.folder, "DELETE FROM orders WHERE customer_id = 'customer-002'")
    assert rim.materialise().success
    shown = rim.shown("eligible_customers")
    assert (shown["drift_added"], shown["drift_removed"], shown["drift_readdressed"]) == (1, 1, 1)
    assert everybody_once(rim, LABEL)


def test_excluded_and_empty_customers_are_counted_by_reason(open_rim):
    """OBS-03, INP-13."""
    rim = open_rim()
    write_customers(
        rim.folder,
        [
            customer(6, opted_in=0),
            customer(7, opted_in=0),
            customer(8, email="no at sign"),
            customer(9, hidden=1),
        ],
    )
    done = rim.materialise()
    assert failures(done) == {}
    shown = rim.shown("eligible_customers")
    assert (shown["selected"], shown["eligible"], shown["excluded"]) == (9, 6, 3)
    assert shown["excluded_opted_out"] == 2
    assert rim.shown("digest_rows")["suppressed_empty"] == 1
    assert rim.shown("delivery_outcomes")["suppressed"] == 1
    assert everybody_once(rim, LABEL)


@on_sqlite
def test_a_period_without_anybody_is_sealed_complete_and_passes_its_checks(open_rim):
    rim = open_rim(days=["2025-03-12"])
    done = rim.materialise()
    assert failures(done) == {}
    assert all(check.passed for check in done.get_asset_check_evaluations())
    shown = rim.shown("delivery_outcomes")
    assert (shown["status"], shown["eligible"], shown["coverage"]) == ("complete", 0, 1.0)
    assert rim.accepted() == {}


def test_five_weeks_in_one_go_are_five_complete_weeks(open_rim):
    rim = open_rim(**FIVE)
    for label in WEEKS:
        assert rim.materialise(label).success
    assert everybody_once(rim, *WEEKS)
    for label in WEEKS:
        assert rim.states(label) == {"cleaned": 5}
        shown = rim.shown("delivery_outcomes", label)
        assert (shown["status"], shown["sent_now"]) == ("complete", 5)


def test_a_week_whose_window_has_closed_is_held_and_the_metadata_says_so(open_rim):
    rim = open_rim(delivery_window={"closes_after_hours": 72})
    done = rim.materialise()
    assert failures(done) == {}
    assert rim.accepted() == {}
    assert rim.states() == {"pending": 5}
    shown = rim.shown("delivery_outcomes")
    assert shown["status"] == "incomplete: held window_closed 5"
    assert (shown["sent_now"], shown["held"], shown["waiting"], shown["coverage"]) == (0, 5, 5, 0.0)
    assert rim.actions() == []
    found = {check.check_name: check for check in done.get_asset_check_evaluations()}
    assert not found["coverage_meets_objective"].passed
    assert "window_closed 5" in str(found["coverage_meets_objective"].description)


def test_allow_late_with_a_reason_sends_the_held_week_and_is_in_the_audit_trail(open_rim):
    rim = open_rim(delivery_window={"closes_after_hours": 72})
    rim.materialise()
    done = rim.materialise(allow_late=True, reason="the provider was down", by="ann")
    assert failures(done) == {}
    assert everybody_once(rim, LABEL)
    (action,) = rim.actions()
    assert (action.kind, action.who, action.reason) == ("late", "ann", "the provider was down")
    assert (action.digest, action.period) == ("tiny_digest", LABEL)
    assert rim.shown("delivery_outcomes")["status"] == "complete"
    assert all(check.passed for check in done.get_asset_check_evaluations())


@on_sqlite
def test_a_permission_to_be_late_is_for_its_own_period_only(open_rim):
    rim = open_rim(delivery_window={"closes_after_hours": 72}, **FIVE)
    rim.materialise("2025-W10", allow_late=True, reason="this one only")
    rim.materialise("2025-W11")
    assert everybody_once(rim, "2025-W10")
    assert rim.states("2025-W11") == {"pending": 5}


@on_sqlite
@pytest.mark.parametrize("reason", ["", "   "])
def test_allow_late_without_a_reason_is_refused_before_anything_is_sent(open_rim, reason):
    rim = open_rim(delivery_window={"closes_after_hours": 72})
    done = rim.materialise(allow_late=True, reason=reason)
    assert not done.success
    assert any("plan_delivery" in step for step in failures(done))
    assert rim.accepted() == {}
    assert rim.actions() == []
    assert not rim.is_materialised("delivery_outcomes")


@on_sqlite
def test_allow_late_for_an_open_window_changes_nothing(open_rim):
    rim = open_rim()
    assert rim.materialise(allow_late=True, reason="to be sure").success
    assert rim.actions() == []


def halted_failure(done: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (failure,) = (
        event for event in done.all_events if event.is_step_failure and "collect" in str(event.step_key)
    )
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    return {name: value.value for name, value in data.metadata.items()} | {"text": data.description}


def test_a_refused_account_fails_the_run_loudly_and_the_next_run_goes_on(open_rim):
    """OBS-01, LOST-19: the UI never says sent while the provider says 401."""
    rim = open_rim()
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=100))
    done = rim.materialise()
    assert not done.success
    shown = halted_failure(done)
    assert (shown["sent_now"], shown["waiting"], shown["coverage"]) == (0, 5, 0.0)
    assert "halted" in str(shown["text"])
    assert "account" in str(shown["text"])
    assert not rim.is_materialised("delivery_outcomes")
    assert not rim.is_materialised("cleaned_digest_rows")
    report = rim.folder / "home" / "reports" / f"tiny_digest-{LABEL}.html"
    assert report.exists()
    assert str(shown["report"]) == str(report)
    assert rim.states() == {"pending": 5}
    assert {row.attempts for row in rim.sql("SELECT attempts FROM delivery")} == {0}

    rim.sandbox.control.clear_faults()
    again = rim.materialise()
    assert failures(again) == {}
    assert everybody_once(rim, LABEL)
    assert rim.shown("delivery_outcomes")["sent_now"] == 5


def test_a_refused_account_in_the_middle_keeps_what_was_sent(open_rim):
    rim = open_rim(customers=12, sending={"concurrency": 1, "lanes": 1})
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, nth_key=5))
    done = rim.materialise()
    assert not done.success
    shown = halted_failure(done)
    assert shown["sent_now"] == len(rim.accepted())
    assert 0 < len(rim.accepted()) < 12
    assert shown["waiting"] == 12 - len(rim.accepted())
    rim.sandbox.control.clear_faults()
    assert rim.materialise().success
    assert everybody_once(rim, LABEL, customers=12)


@on_sqlite
def test_a_copied_ledger_sends_nothing(open_rim, monkeypatch):
    """DUP-26."""
    rim = open_rim()
    monkeypatch.setenv("DIGEST_ENVIRONMENT", "staging")
    done = rim.materialise()
    assert not done.success
    assert any("plan_delivery" in step for step in failures(done))
    assert rim.accepted() == {}


@pytest.fixture
def broken_at(monkeypatch):
    """Let the process raise at one point, until it is mended."""

    def break_at(point: faults.Point, hit: int = 1) -> None:
        monkeypatch.setattr(faults, "_plan", faults._Plan(f"{point}:raise:{hit}"))

    def mend() -> None:
        monkeypatch.setattr(faults, "_plan", faults._Plan(None))

    break_at.mend = mend  # type: ignore[attr-defined]
    return break_at


@pytest.mark.parametrize(
    ("point", "hit", "step", "how"),
    [
        (faults.Point.CONTENT_BUILDING, 1, "digest_rows", "from_failure"),
        (faults.Point.BEFORE_PROVIDER_CALL, 3, "send_batches", "from_failure"),
        (faults.Point.AFTER_PROVIDER_CALL, 3, "send_batches", "from_failure"),
        (faults.Point.AFTER_PROVIDER_CALL, 3, "send_batches", "all_steps"),
        (faults.Point.INSIDE_CLEANUP, 1, "cleaned_digest_rows", "from_failure"),
    ],
)
def test_re_executing_a_broken_run_finishes_it_and_sends_nothing_twice(
    open_rim, broken_at, point, hit, step, how
):
    """DUP-17, and Dagster's own 'from failure', which drops the batches of a dynamic graph."""
    rim = open_rim(customers=8)
    broken_at(point, hit)
    first = dg.execute_job(
        dg.reconstructable(weekly_job),
        rim.instance,
        tags={"dagster/partition": rim.period().partition_key},
    )
    assert not first.success
    assert any(step in str(event.step_key) for event in first.all_events if event.is_step_failure)
    broken_at.mend()
    rim.end_leases()
    if how == "from_failure":
        options = dg.ReexecutionOptions.from_failure(first.run_id, rim.instance)
    else:
        options = dg.ReexecutionOptions(parent_run_id=first.run_id)
    again = dg.execute_job(
        dg.reconstructable(weekly_job),
        rim.instance,
        tags={"dagster/partition": rim.period().partition_key},
        reexecution_options=options,
    )
    assert failures(again) == {}
    assert everybody_once(rim, LABEL, customers=8)
    assert rim.states() == {"cleaned": 8}
    assert rim.shown("delivery_outcomes")["status"] == "complete"


def test_re_executing_a_finished_run_from_a_step_of_the_delivery_sends_nothing(open_rim):
    rim = open_rim()
    tags = {"dagster/partition": rim.period().partition_key}
    first = dg.execute_job(dg.reconstructable(weekly_job), rim.instance, tags=tags)
    assert first.success
    for step in ("plan_delivery", "send_batches_1", "collect_outcomes"):
        name = step if step == "send_batches_1" else f"tiny_digest__{step}"
        again = dg.execute_job(
            dg.reconstructable(weekly_job),
            rim.instance,
            tags=tags,
            reexecution_options=dg.ReexecutionOptions(
                parent_run_id=first.run_id, step_selection=[f"tiny_digest__delivery_outcomes.{name}*"]
            ),
        )
        assert failures(again) == {}, step
    assert everybody_once(rim, LABEL)
    assert rim.states() == {"cleaned": 5}
