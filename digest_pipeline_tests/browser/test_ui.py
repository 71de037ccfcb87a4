"""The Dagster UI as a work place: what a data team clicks there in a real browser, and what it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from playwright.sync_api import expect

from digest_pipeline.defs.names import ASSETS, checks_job_name, job_name
from digest_pipeline.periods import Period
from digest_pipeline_tests.browser.conftest import CUSTOMERS, Desk
from digest_pipeline_tests.browser.person import (
    BROWSER_VARIABLE,
    RUN_MS,
    Person,
    installed_browser,
    person_at,
)
from digest_pipeline_tests.pipeline.violations import second_acceptance

pytestmark = [pytest.mark.daemon, pytest.mark.slow, pytest.mark.postgresql]

FIRST, LAST, AGAIN, BROKEN = 14, 12, 15, 16
CLOSED = 33
"""Weeks by how long ago they ended, apart from those of the other module."""


@pytest.fixture
def person(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Person]:
    browser = installed_browser()
    if browser is None:
        pytest.skip(f"no Chromium on this machine: install one, or name it with {BROWSER_VARIABLE}")
    with person_at(desk, browser) as person:
        try:
            yield person
        finally:
            person.keeps(f"{request.node.name}-end")


@pytest.fixture
def sent(desk: Desk) -> Period:
    """A week that has been sent before."""
    week = desk.periods[AGAIN]
    assets = [desk.asset(name) for name in ASSETS]
    run_id = desk.graphql.launch(partition=week.partition_key, assets=assets)
    assert desk.graphql.wait_for_run(run_id) == "SUCCESS"
    return week


def test_a_backfill_of_three_weeks_launched_in_the_graph_is_watched_until_they_are_materialised(person, desk):
    weeks = desk.periods[LAST : FIRST + 1]
    newest, oldest = weeks[0].partition_key, weeks[-1].partition_key
    person.open_graph()
    assert person.page.get_by_role("dialog").count() == 0, "something covers the page on a first visit"

    person.clicks("Materialize all")
    dialog = person.page.get_by_role("dialog")
    person.chooses_partitions(f"[{oldest}...{newest}]", "3 partitions")
    person.keeps("1-backfill-dialog")
    person.clicks("Launch backfill", within=dialog)
    person.sees("Created backfill")
    person.follows_the_toast()
    person.sees("Succeeded")  # the column; the status is what the count below stands for
    done = person.page.get_by_text("100% completed")
    expect(done).to_have_count(len(ASSETS), timeout=RUN_MS)
    person.keeps("2-backfill-done")

    person.open_asset("delivery_outcomes", "partitions", partition=newest)
    person.reads("sent_now", str(CUSTOMERS))
    person.page.get_by_text("Missing (").click()
    for week in weeks:
        person.sees(week.partition_key)
    person.keeps("3-partitions")
    person.open_graph()
    person.sees("40 partitions")
    person.keeps("4-graph")
    assert desk.accepted(*weeks) == desk.once_each(*weeks)


def test_a_week_materialised_again_shows_that_nothing_was_sent(person, desk, sent):
    person.open_asset("delivery_outcomes", "partitions", partition=sent.partition_key)
    person.reads("sent_now", str(CUSTOMERS))
    person.open_graph()
    person.clicks("Materialize all")
    person.chooses_partitions(sent.partition_key, "1 partition")
    person.clicks("Launch 1 run", within=person.page.get_by_role("dialog"))
    person.follows_the_toast()
    person.waits_for_run()
    person.keeps("5-run")

    person.open_asset("delivery_outcomes", "partitions", partition=sent.partition_key)
    person.reads("sent_now", "0")
    person.reads("already_sent", str(CUSTOMERS))
    person.keeps("6-sent-again")
    assert desk.accepted(sent) == desk.once_each(sent)


def test_a_failing_check_names_the_key_the_reason_and_the_next_command(person, desk, sent):
    key = desk.rim.key_of(2, sent.label)
    with desk.rim.as_it_was():
        (manifest_id,) = desk.rim.ids(sent.label)
        second_acceptance("'another-message'")(desk.rim, manifest_id)
        person.open_launchpad(checks_job_name(desk.rim.digest))
        person.clicks("Edit tags")
        dialog = person.page.get_by_role("dialog")
        dialog.get_by_placeholder("Tag Key").last.fill("dagster/partition")
        dialog.get_by_placeholder("Tag Value").last.fill(sent.partition_key)
        person.clicks("Apply", within=dialog)
        person.clicks("Launch Run")
        person.page.wait_for_url(re.compile("/runs/"))
        person.sees("Failure", RUN_MS)
        person.keeps("7-checks-run")

    person.open_asset("delivery_outcomes", "checks", checkDetail="no_duplicate_sends")
    person.sees("Failed")
    person.sees(re.compile(rf"Next: .*{re.escape(key)}"))
    person.keeps("8-failing-check")
    shown = person.page.inner_text("body")
    assert "digest trace" in shown
    assert "@" not in shown, "a check may name keys, never an address"


def test_a_late_week_is_sent_from_the_launchpad_with_a_reason(person, desk):
    week, name = desk.periods[CLOSED], desk.rim.digest.name
    person.open_launchpad(job_name(desk.rim.digest))
    person.sees("allow_late")
    person.chooses_partition(week.partition_key)
    late = {"allow_late": True, "by": "ana", "reason": "the source was down"}
    plan = {f"{name}__plan_delivery": {"config": late}}
    person.writes_config(yaml.safe_dump({"ops": {f"{name}__delivery_outcomes": {"ops": plan}}}))
    person.sees("No errors")
    person.keeps("9-launchpad")
    person.clicks("Launch Run")
    person.waits_for_run()

    person.open_asset("delivery_outcomes", "partitions", partition=week.partition_key)
    person.reads("sent_now", str(CUSTOMERS))
    person.keeps("10-late-week")
    assert desk.accepted(week) == desk.once_each(week)
    (action,) = [action for action in desk.rim.actions() if action.period == week.label]
    assert (action.kind, action.who, action.reason) == ("late", "ana", "the source was down")
