"""What people do to runs and backfills, on a real site: nothing twice, nothing missing, one run of a period at a time."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from digest_pipeline.defs.names import ASSETS, job_name, period_tag
from digest_pipeline.periods import Period
from digest_pipeline_tests.browser.conftest import CUSTOMERS, Desk
from digest_pipeline_tests.harness.graphql import until

pytestmark = [pytest.mark.daemon, pytest.mark.slow, pytest.mark.postgresql]

COMPLETE, MISSING, CANCELED, KILLED, TWINS, OTHERS = 5, 6, 7, 8, 10, 17
CLOSED = 30
"""Weeks by how long ago they ended: each test has its own, and none of them is the schedule's or a sensor's."""

SLOW_MS = 4_000.0
"""A provider so slow that there is time to act in the middle of a period."""


def launch(desk: Desk, week: Period, *, with_our_tag: bool = False) -> str:
    """Start a run of a week's assets, as the UI does, or of the job with the tag that schedules set."""
    if with_our_tag:
        digest = desk.rim.digest
        return desk.graphql.launch(job_name(digest), week.partition_key, tags=period_tag(digest, week))
    return desk.graphql.launch(partition=week.partition_key, assets=[desk.asset(name) for name in ASSETS])


def backfill(desk: Desk, *weeks: Period, late: dict[str, Any] | None = None) -> str:
    """Backfill every asset of these weeks; return how that ended."""
    config = None
    if late is not None:
        name = desk.rim.digest.name
        plan = {f"{name}__plan_delivery": {"config": late}}
        config = {"ops": {f"{name}__delivery_outcomes": {"ops": plan}}}
    keys = [week.partition_key for week in weeks]
    started = desk.graphql.backfill(keys, [desk.asset(name) for name in ASSETS], config=config)
    return desk.graphql.wait_for_backfill(started)


def shown(desk: Desk, week: Period) -> dict[str, Any]:
    return desk.graphql.shown(desk.asset("delivery_outcomes"), week.partition_key)


def sending(desk: Desk, week: Period, *, with_our_tag: bool = False) -> str:
    """Start a run against a slow provider; return its id once messages have been accepted and more are to come."""
    desk.rim.sandbox.change(latency_ms=SLOW_MS)
    run_id = launch(desk, week, with_our_tag=with_our_tag)
    until(lambda: len(desk.accepted(week)), lambda count: count >= 2, "the first messages")
    assert len(desk.accepted(week)) < CUSTOMERS
    return run_id


def test_a_backfill_sends_what_is_missing_and_open_and_leaves_the_rest(desk):
    """DUP-23."""
    complete, missing, closed = desk.periods[COMPLETE], desk.periods[MISSING], desk.periods[CLOSED]
    assert desk.graphql.wait_for_run(launch(desk, complete)) == "SUCCESS"

    assert backfill(desk, complete, missing, closed) == "COMPLETED_SUCCESS"
    assert desk.accepted(complete, missing, closed) == desk.once_each(complete, missing)
    assert [shown(desk, week)["sent_now"] for week in (complete, missing, closed)] == [0, CUSTOMERS, 0]
    assert "window" in str(shown(desk, closed)["status"])
    assert desk.rim.states(closed.label) == {"pending": CUSTOMERS}

    late = {"allow_late": True, "reason": "the source was down", "by": "ana"}
    assert backfill(desk, closed, late=late) == "COMPLETED_SUCCESS"
    assert desk.accepted(closed) == desk.once_each(closed)
    (action,) = [action for action in desk.rim.actions() if action.period == closed.label]
    assert (action.kind, action.who, action.reason) == ("late", "ana", "the source was down")


@pytest.mark.parametrize("with_our_tag", [False, True], ids=["from_the_ui", "of_the_job"])
def test_a_second_run_of_a_period_waits_until_the_first_has_ended(desk, with_our_tag):
    week = desk.periods[TWINS + with_our_tag]
    first = sending(desk, week)
    second = launch(desk, week, with_our_tag=with_our_tag)
    # Another week's, launched later: once it is let go, the queue has passed over the second.
    other = desk.graphql.launch(
        partition=desk.periods[OTHERS].partition_key, assets=[desk.asset("eligible_customers")]
    )
    until(lambda: desk.graphql.run(other), lambda run: run.status != "QUEUED", "the other week's turn")
    assert [desk.graphql.run(run_id).status for run_id in (second, first)] == ["QUEUED", "STARTED"]

    desk.rim.sandbox.change(latency_ms=0.0)
    assert [desk.graphql.wait_for_run(run_id) for run_id in (first, second, other)] == ["SUCCESS"] * 3
    one, two = desk.graphql.run(first), desk.graphql.run(second)
    assert one.ended is not None
    assert two.started is not None
    assert two.started >= one.ended
    assert desk.accepted(week) == desk.once_each(week)
    assert shown(desk, week)["sent_now"] == 0


def test_a_run_canceled_while_it_sends_and_re_executed_sends_the_rest_once(desk):
    week = desk.periods[CANCELED]
    run_id = sending(desk, week)
    desk.graphql.terminate(run_id)
    assert desk.graphql.wait_for_run(run_id) == "CANCELED"
    assert len(desk.accepted(week)) < CUSTOMERS, "it was canceled too late for this test to tell anything"

    desk.rim.sandbox.change(latency_ms=0.0)
    again = desk.graphql.re_execute(run_id, "FROM_FAILURE")
    assert desk.graphql.wait_for_run(again) == "SUCCESS"
    assert desk.accepted(week) == desk.once_each(week)

    whole = desk.graphql.re_execute(run_id, "ALL_STEPS")
    assert desk.graphql.wait_for_run(whole) == "SUCCESS"
    assert desk.accepted(week) == desk.once_each(week)
    assert shown(desk, week)["sent_now"] == 0


@pytest.mark.parametrize("with_our_tag", [False, True], ids=["from_the_ui", "of_the_job"])
def test_a_run_whose_process_was_killed_is_finished_by_the_daemon(desk, with_our_tag):
    week = desk.periods[KILLED + with_our_tag]
    run_id = sending(desk, week, with_our_tag=with_our_tag)
    os.kill(desk.graphql.process_of(run_id), signal.SIGKILL)
    assert desk.graphql.wait_for_run(run_id) == "FAILURE"
    assert len(desk.accepted(week)) < CUSTOMERS, "it was killed too late for this test to tell anything"

    desk.rim.sandbox.change(latency_ms=0.0)
    retries = until(
        lambda: desk.graphql.runs(dagster__parent_run_id=run_id),
        lambda runs: [run.status for run in runs] == ["SUCCESS"],
        "the daemon's retry to succeed",
    )
    assert retries[0].tags["dagster/retry_number"] == "1"
    assert desk.accepted(week) == desk.once_each(week)
    assert desk.rim.states(week.label) == {"cleaned": CUSTOMERS}
