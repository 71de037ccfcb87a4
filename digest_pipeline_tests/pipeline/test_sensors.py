"""Sensors come back to a period for what is left to do in it: each reason once, and never in a storm."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from digest_pipeline.defs.names import FOLLOW_UP_AT_TAG, FOLLOW_UP_TAG, job_name, period_tag
from digest_pipeline.defs.resources import Installation
from digest_pipeline.defs.sensors_missed import GRACE
from digest_pipeline.defs.sensors_runs import MOST_REQUESTS, Earlier
from digest_pipeline.errors import EnvironmentMismatchError, LedgerError, SchemaVersionError
from digest_pipeline.installation import make_gateway
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.time_shift import pass_time
from digest_pipeline.ledger import claims, pauses
from digest_pipeline.ledger.claims import Claimer
from digest_pipeline_tests.harness.ledgers import LABEL
from digest_pipeline_tests.harness.rim import Rim, failures

on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)

NOTHING = "nothing is to be done"
MINUTE, HOUR, DAY = 60, 3_600, 86_400
LOOK_UP_ONLY = {"settings": {"idempotency": "none"}}
ONE_LATER_TRY = {"base_seconds": 600, "cap_seconds": 600, "max_attempts": 3}


def tick(rim: Rim, which: str = "follow_ups", cursor: str | None = None) -> Any:
    """Evaluate a sensor as the daemon's code server does; return what the daemon gets."""
    repository = rim.definitions.get_repository_def()
    sensor = repository.get_sensor_def(f"{rim.digest.name}_{which}")
    with dg.build_sensor_context(
        instance=rim.instance,
        repository_def=repository,
        cursor=cursor,
        resources={"installation": Installation()},
    ) as context:
        return sensor.evaluate_tick(context)


def asked(rim: Rim, which: str = "follow_ups", cursor: str | None = None) -> list[dg.RunRequest]:
    return list(tick(rim, which, cursor).run_requests)


def said(rim: Rim, which: str = "follow_ups") -> str:
    """Return why a tick asked for nothing."""
    data = tick(rim, which)
    assert data.run_requests == []
    return str(data.skip_message)


def only(requests: Sequence[dg.RunRequest], reason: str, label: str = LABEL) -> dg.RunRequest:
    """Return the one request, which is for this reason and period."""
    (request,) = requests
    assert request.tags[FOLLOW_UP_TAG] == reason
    assert request.tags["digest/period"] == f"tiny_digest:{label}"
    assert request.partition_key == f"{label}-1"
    return request


def execute(rim: Rim, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    """Run what was asked for, as a run worker does."""
    job = rim.definitions.resolve_job_def(job_name(rim.digest)).get_subset(
        asset_selection=set(request.asset_selection or ()),
        asset_check_selection=None if request.asset_check_keys is None else set(request.asset_check_keys),
    )
    return job.execute_in_process(
        instance=rim.instance,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        partition_key=request.partition_key,
        tags={**request.tags, "dagster/run_key": str(request.run_key)},
        raise_on_error=False,
    )


def followed_up(rim: Rim, request: dg.RunRequest) -> set[str]:
    """Run a request, which succeeds; return which assets it materialised."""
    done = execute(rim, request)
    assert failures(done) == {}
    return {
        key.path[-1] for key in (event.asset_key for event in done.get_asset_materialization_events()) if key
    }


def materialise_only(rim: Rim, *assets: str, label: str = LABEL) -> None:
    keys = [dg.AssetKey([rim.digest.name, asset]) for asset in assets]
    job = rim.definitions.resolve_job_def(job_name(rim.digest))
    assert job.execute_in_process(
        instance=rim.instance, asset_selection=keys, partition_key=f"{label}-1"
    ).success


def everybody_once(rim: Rim, *labels: str) -> bool:
    return rim.accepted() == {rim.key_of(n, label): 1 for label in labels or (LABEL,) for n in range(1, 6)}


DELIVERY = {"delivery_outcomes", "reconciliation_report", "cleaned_digest_rows"}


def test_a_finished_period_is_left_alone(open_rim):
    rim = open_rim()
    assert said(rim) == NOTHING
    rim.materialise()
    for which in ("follow_ups", "cleanup"):
        assert said(rim, which) == NOTHING


def test_a_retry_that_came_due_after_its_run_is_sent_by_another(open_rim):
    rim = open_rim(retry=ONE_LATER_TRY)
    rim.sandbox.control.script(Rule(Fault.UNAVAILABLE_503, keys=[rim.key_of(2)]))
    rim.materialise()
    assert rim.states() == {"cleaned": 4, "retry": 1}
    assert said(rim) == NOTHING
    pass_time(rim.ledger, 10 * MINUTE)
    request = only(asked(rim), "retries_due")
    assert followed_up(rim, request) == DELIVERY
    assert rim.states() == {"cleaned": 5}
    assert everybody_once(rim)
    assert said(rim) == NOTHING


def test_what_a_dead_sender_had_claimed_is_settled_when_its_lease_has_ended(open_rim):
    """LOST-07: LOST-04."""
    rim = open_rim(sending={"lease_seconds": 60})
    materialise_only(rim, "eligible_customers", "digest_rows")
    gateway = make_gateway(rim.digest)
    dead = Claimer("gone/s1", gateway.name, gateway.account, 60_000_000)
    with rim.ledger.write() as conn:
        assert len(claims.claim_due(conn, rim.ids()[0], 5, dead).claimed) == 5
    assert said(rim) == NOTHING
    pass_time(rim.ledger, MINUTE + 1)
    assert followed_up(rim, only(asked(rim), "leases_ended")) == DELIVERY
    assert rim.states() == {"cleaned": 5}
    assert everybody_once(rim)
    assert said(rim) == NOTHING


def test_an_unknown_is_asked_about_when_its_evidence_can_be_had(open_rim):
    rim = open_rim(gateway=LOOK_UP_ONLY, sending={"in_run_wait_seconds": 0})
    rim.sandbox.change(idempotency="none")
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(3)]))
    rim.materialise()
    assert rim.states() == {"cleaned": 4, "unknown": 1}
    pass_time(rim.ledger, MINUTE)
    assert followed_up(rim, only(asked(rim), "evidence_due")) == DELIVERY
    assert rim.states() == {"cleaned": 5}
    assert everybody_once(rim)
    assert said(rim) == NOTHING


def test_a_sealed_manifest_that_nobody_delivered_is_sent_but_not_at_once(open_rim):
    """LOST-04."""
    rim = open_rim()
    materialise_only(rim, "eligible_customers", "digest_rows")
    assert said(rim) == NOTHING
    pass_time(rim.ledger, 10 * MINUTE)
    (rim.folder / "source.db").unlink()  # it is not read again
    assert followed_up(rim, only(asked(rim), "undelivered")) == DELIVERY
    assert everybody_once(rim)
    assert said(rim) == NOTHING


def test_a_period_is_sent_when_its_window_opens(open_rim):
    ended = datetime(2025, 3, 9, 23, tzinfo=UTC)
    opens = (datetime.now(UTC) - ended) / timedelta(hours=1) + 2
    rim = open_rim(delivery_window={"opens_after_hours": opens})
    rim.materialise()
    assert rim.shown("delivery_outcomes")["status"] == "incomplete: held window_not_open 5"
    pass_time(rim.ledger, HOUR)
    assert said(rim) == NOTHING
    pass_time(rim.ledger, HOUR + MINUTE)
    followed_up(rim, only(asked(rim), "undelivered"))
    assert everybody_once(rim)


def test_a_sealed_manifest_without_content_is_finished(open_rim):
    """LOST-04."""
    rim = open_rim()
    materialise_only(rim, "eligible_customers")
    assert said(rim) == NOTHING
    rim.sql("UPDATE manifest SET sealed_at = sealed_at - 600000000")
    assert followed_up(rim, only(asked(rim), "content_not_sealed")) == {"digest_rows", *DELIVERY}
    assert everybody_once(rim)


def test_a_retry_whose_window_has_closed_is_ended(open_rim):
    rim = open_rim(retry=ONE_LATER_TRY)
    rim.sandbox.control.script(Rule(Fault.UNAVAILABLE_503, keys=[rim.key_of(2)]))
    rim.materialise()
    rim.close_windows()
    followed_up(rim, only(asked(rim), "window_closed"))
    assert rim.states() == {"cleaned": 4, "dead": 1}
    assert said(rim) == NOTHING


def test_a_replay_is_carried_out_although_the_window_has_closed(open_rim):
    rim = open_rim(retry={**ONE_LATER_TRY, "max_attempts": 1})
    rim.sandbox.control.script(Rule(Fault.UNAVAILABLE_503, keys=[rim.key_of(2)]))
    rim.materialise()
    assert rim.states() == {"cleaned": 4, "dead": 1}
    rim.close_windows()
    assert said(rim) == NOTHING
    done = rim.definitions.resolve_job_def("replay").execute_in_process(
        instance=rim.instance,
        run_config={"ops": {"order_replay": {"config": {
            "digest": "tiny_digest", "period": LABEL, "keys": [rim.key_of(2)],
            "by": "me", "reason": "mended", "apply": True}}}},
    )  # fmt: skip
    assert done.success
    followed_up(rim, only(asked(rim), "retries_due"))
    assert everybody_once(rim)


TWO_WEEKS = {"days": ["2025-03-05", "2025-03-12"]}


def test_a_refused_account_is_tried_by_one_period_when_its_probe_is_due(open_rim):
    rim = open_rim(**TWO_WEEKS)
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1_000))
    for label in ("2025-W10", "2025-W11"):
        assert not rim.materialise(label).success
    pass_time(rim.ledger, 10)
    rim.sql("UPDATE manifest SET content_sealed_at = content_sealed_at - 600000000")
    assert said(rim).startswith("sending is halted; it is tried again after 20")
    pass_time(rim.ledger, MINUTE)
    request = only(asked(rim), "probe_due", "2025-W10")
    before = rim.sandbox.control.statistics()["arrivals"]
    assert not execute(rim, request).success
    assert rim.sandbox.control.statistics()["arrivals"] == before + 1
    rim.sandbox.control.clear_faults()
    pass_time(rim.ledger, MINUTE)
    assert said(rim).startswith("2025-W10, probe_due: tried before, and again after 20")


def test_a_refused_account_is_tried_with_a_message_and_not_with_the_question_of_an_older_period(open_rim):
    """A question is refused as long as the halt lasts: only a message that is accepted ends it."""
    rim = open_rim(**TWO_WEEKS, gateway=LOOK_UP_ONLY, sending={"in_run_wait_seconds": 0})
    rim.sandbox.change(idempotency="none")
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(2)]))
    rim.materialise("2025-W10")
    assert rim.states("2025-W10") == {"cleaned": 4, "unknown": 1}
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1_000))
    assert not rim.materialise("2025-W11").success
    rim.sandbox.control.clear_faults()
    pass_time(rim.ledger, HOUR)
    request = only(asked(rim), "probe_due", "2025-W11")
    assert followed_up(rim, request) == DELIVERY
    assert rim.states("2025-W11") == {"cleaned": 5}
    assert followed_up(rim, only(asked(rim), "evidence_due", "2025-W10")) == DELIVERY
    assert rim.states("2025-W10") == {"cleaned": 5}
    assert everybody_once(rim, "2025-W10", "2025-W11")


def test_the_provider_is_given_the_rest_it_asked_for(open_rim):
    rim = open_rim(sending={"concurrency": 1, "lanes": 1})
    rim.sandbox.control.script(Rule(Fault.THROTTLED_429, next=1, retry_after=7_200))
    rim.materialise()
    pass_time(rim.ledger, HOUR)
    assert said(rim).startswith("the provider is given a rest until ")
    pass_time(rim.ledger, HOUR)
    followed_up(rim, only(asked(rim), "undelivered"))
    assert everybody_once(rim)


def waiting(open_rim, **changes: Any) -> Rim:
    """Return an installation with a sealed period that nobody has delivered for an hour."""
    rim: Rim = open_rim(**changes)
    materialise_only(rim, "eligible_customers", "digest_rows")
    pass_time(rim.ledger, HOUR)
    return rim


@pytest.mark.parametrize(
    ("kind", "name"),
    [("digest", "tiny_digest"), ("tenant", "tiny_digest/default"), ("gateway", "sandbox")],
)
@on_sqlite
def test_what_is_paused_waits_until_it_is_resumed(open_rim, kind, name):
    rim = waiting(open_rim)
    rim.ledger.transact(lambda conn: pauses.add(conn, kind, name))
    assert said(rim) == NOTHING
    rim.ledger.transact(lambda conn: pauses.remove(conn, kind, name))
    only(asked(rim), "undelivered")


def test_a_disabled_digest_and_a_closed_window_are_not_followed_up(open_rim):
    disabled = waiting(open_rim, sending={"enabled": False})
    assert said(disabled) == NOTHING
    disabled.close_windows()
    assert said(disabled) == NOTHING


def test_a_period_in_doubt_after_a_restore_waits_for_a_person(open_rim):
    rim = waiting(open_rim)
    rim.sql("UPDATE manifest SET in_doubt_from_at = 1, doubted_at = NULL")
    assert said(rim) == NOTHING


def test_cleanup_waits_for_the_window_and_then_comes_by_itself(open_rim):
    rim = open_rim(cleanup={"delay_hours": None})
    rim.materialise()
    assert rim.states() == {"sent": 5}
    assert said(rim, "cleanup") == NOTHING
    rim.close_windows()
    assert said(rim) == NOTHING
    request = only(asked(rim, "cleanup"), "cleanup_due")
    assert followed_up(rim, request) == {"reconciliation_report", "cleaned_digest_rows"}
    assert rim.states() == {"cleaned": 5}
    assert said(rim, "cleanup") == NOTHING


def test_cleanup_comes_when_its_delay_has_passed(open_rim):
    rim = open_rim(cleanup={"delay_hours": 2})
    rim.materialise()
    pass_time(rim.ledger, HOUR)
    assert said(rim, "cleanup") == NOTHING
    pass_time(rim.ledger, HOUR)
    followed_up(rim, only(asked(rim, "cleanup"), "cleanup_due"))
    assert rim.states() == {"cleaned": 5}


def test_rows_past_their_retention_are_removed(open_rim):
    rim = open_rim(retention={"failed_days": 3})
    rim.sandbox.control.script(Rule(Fault.INVALID_RECIPIENT_422, keys=[rim.key_of(4)]))
    rim.materialise()
    assert rim.states() == {"cleaned": 4, "failed": 1}
    pass_time(rim.ledger, 2 * DAY)
    assert said(rim, "cleanup") == NOTHING
    pass_time(rim.ledger, DAY + 1)
    followed_up(rim, only(asked(rim, "cleanup"), "retention_over"))
    assert rim.shown("cleaned_digest_rows")["retention_removed_failed"] == 1
    assert said(rim, "cleanup") == NOTHING


def test_unknowns_and_rows_never_tried_are_ended_by_the_retention_rule(open_rim):
    rim = open_rim(
        gateway={"settings": {"idempotency": "none", "look_up": "false"}},
        retention={"unknown_days": 10, "pending_days": 20},
        delivery_window={"closes_after_hours": 500_000},
    )
    rim.sandbox.change(idempotency="none", look_up=False)
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(3)]))
    rim.materialise()
    assert rim.states() == {"cleaned": 4, "unknown": 1}
    assert said(rim) == NOTHING
    pass_time(rim.ledger, 10 * DAY + 1)
    followed_up(rim, only(asked(rim, "cleanup"), "retention_over"))
    assert rim.states() == {"cleaned": 4, "written_off": 1}


def test_a_held_period_is_ended_by_the_retention_rule(open_rim):
    rim = open_rim(retention={"pending_days": 20}, delivery_window={"closes_after_hours": 72})
    rim.materialise()
    pass_time(rim.ledger, 19 * DAY)
    assert said(rim, "cleanup") == NOTHING
    pass_time(rim.ledger, DAY + 1)
    followed_up(rim, only(asked(rim, "cleanup"), "retention_over"))
    assert rim.states() == {"dead": 5}


@on_sqlite
def test_what_stopped_the_first_run_stops_its_follow_up(open_rim):
    """A run that starts in the middle of the job asks the blocking checks before it, too."""
    rim = waiting(open_rim)
    rim.sql("UPDATE manifest_entry SET recipient = 'other@example.test' WHERE ordinal = 1")
    assert not rim.materialise().success
    done = execute(rim, only(asked(rim), "undelivered"))
    assert not done.success
    assert [check.check_name for check in done.get_asset_check_evaluations() if not check.passed] == [
        "manifest_is_frozen"
    ]
    assert rim.accepted() == {}


@on_sqlite
def test_cleanup_is_not_started_behind_the_back_of_a_provider_that_lists_nothing(open_rim):
    rim = open_rim(cleanup={"delay_hours": 1})
    rim.materialise()
    rim.sandbox.control.reset()
    pass_time(rim.ledger, HOUR)
    assert not execute(rim, only(asked(rim, "cleanup"), "cleanup_due")).success
    assert rim.states() == {"sent": 5}


def plant_run(rim: Rim, label: str = LABEL, job: str | None = None, **how: Any) -> dg.DagsterRun:
    """Make a run of a period as Dagster records it, without executing it."""
    repository = rim.definitions.get_repository_def()
    definition = repository.get_job(job or job_name(rim.digest))
    if "asset_selection" in how:
        definition = definition.get_subset(asset_selection=how["asset_selection"])
    how["tags"] = {"dagster/partition": f"{label}-1", **how.get("tags", {})}
    return rim.instance.create_run_for_job(definition, **how)


def plant_follow_up(rim: Rim, reason: str, ago: timedelta) -> dg.DagsterRun:
    """Make a run that a sensor asked for so long ago, and that ended without any effect."""
    at = (datetime.now(UTC) - ago).isoformat()
    tags = {**period_tag(rim.digest, rim.period()), FOLLOW_UP_TAG: reason, FOLLOW_UP_AT_TAG: at}
    return plant_run(rim, tags=tags, status=dg.DagsterRunStatus.FAILURE)


@on_sqlite
def test_the_same_state_asks_under_one_key_and_a_new_due_time_under_another(open_rim):
    """LOST-14."""
    rim = waiting(open_rim)
    (first,), (again,) = asked(rim), asked(rim)
    assert first.run_key == again.run_key
    assert str(first.run_key).startswith(f"{LABEL}:undelivered:20")
    assert str(first.run_key).endswith(":after-none")
    pass_time(rim.ledger, 5)
    assert only(asked(rim), "undelivered").run_key not in (None, first.run_key)


@on_sqlite
def test_a_used_run_key_never_blocks_the_next_run_for_the_same_state(open_rim):
    """LOST-14."""
    rim = waiting(open_rim)
    first = only(asked(rim), "undelivered")
    plant_follow_up(rim, "undelivered", timedelta(hours=2))
    second = only(asked(rim), "undelivered")
    plant_follow_up(rim, "undelivered", timedelta(days=2))
    third = only(asked(rim), "undelivered")
    assert len({first.run_key, second.run_key, third.run_key}) == 3


ACTIVE_RUNS: dict[str, dict[str, Any]] = {
    "the schedule's": {"tags": {"digest/period": f"tiny_digest:{LABEL}"}},
    "one launched from the job's page": {},
    "one of some assets": {
        "job": "__ASSET_JOB",
        "asset_selection": frozenset({dg.AssetKey(["tiny_digest", "delivery_outcomes"])}),
    },
}


@pytest.mark.parametrize("run", ACTIVE_RUNS.values(), ids=ACTIVE_RUNS.keys())
@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
@on_sqlite
def test_a_period_with_a_run_under_way_waits_and_says_so(open_rim, run, status):
    rim = waiting(open_rim)
    active = plant_run(rim, **run, status=status)
    assert said(rim) == f"{LABEL}, undelivered: run {active.run_id[:8]} of it is queued or in progress"
    rim.instance.delete_run(active.run_id)
    only(asked(rim), "undelivered")


@on_sqlite
def test_runs_of_other_periods_ended_runs_and_checks_hold_up_nobody(open_rim):
    rim = waiting(open_rim)
    started = dg.DagsterRunStatus.STARTED
    plant_run(rim, label="2025-W11", status=started)
    plant_run(rim, status=dg.DagsterRunStatus.FAILURE)
    plant_run(rim, job="tiny_digest_checks", status=started)
    only(asked(rim), "undelivered")


def test_the_next_run_in_vain_waits_longer_and_at_most_an_hour():
    now = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert Earlier().not_before(now) is None
    waits = []
    for count in range(1, 10):
        until = Earlier((now,) * count).not_before(now)
        assert until is not None
        waits.append((until - now) / timedelta(minutes=1))
        assert Earlier((now,) * count).not_before(until) is None
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_day_of_runs_in_vain_is_29_runs_and_each_day_after_it_one_an_hour():
    now = start = datetime(2026, 3, 29, 1, tzinfo=UTC)
    asked_at: list[datetime] = []
    while now < start + timedelta(days=3):
        if Earlier(tuple(asked_at[-16:])).not_before(now) is None:
            asked_at.append(now)
        now += timedelta(seconds=30)
    days = [
        sum(start + timedelta(days=d) <= at < start + timedelta(days=d + 1) for at in asked_at)
        for d in range(3)
    ]
    assert days == [29, 24, 24]


@on_sqlite
def test_a_follow_up_that_changes_nothing_is_not_repeated_at_once(open_rim):
    rim = open_rim(gateway=LOOK_UP_ONLY, sending={"in_run_wait_seconds": 0})
    rim.sandbox.change(idempotency="none")
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(3)]))
    rim.materialise()
    rim.sandbox.stop()
    try:
        pass_time(rim.ledger, MINUTE)
        execute(rim, only(asked(rim), "evidence_due"))
        assert rim.states() == {"cleaned": 4, "unknown": 1}
        pass_time(rim.ledger, HOUR)
        assert said(rim).startswith(f"{LABEL}, evidence_due: tried before, and again after 20")
    finally:
        rim.sandbox.start()


@on_sqlite
def test_one_tick_asks_for_a_few_runs_and_the_next_ones_for_the_others(open_rim):
    days = [f"2025-{month:02d}-05" for month in range(1, 7)]
    rim = open_rim(days=days)
    labels = [rim.digest.period(day).label for day in days]
    for label in labels:
        materialise_only(rim, "eligible_customers", "digest_rows", label=label)
    pass_time(rim.ledger, HOUR)
    requests = asked(rim)
    assert [one.partition_key for one in requests] == [f"{label}-1" for label in labels[:MOST_REQUESTS]]
    for label in labels[:MOST_REQUESTS]:
        plant_run(rim, label=label, status=dg.DagsterRunStatus.STARTED)
    assert [one.partition_key for one in asked(rim)] == [f"{label}-1" for label in labels[MOST_REQUESTS:]]


@on_sqlite
def test_a_period_that_the_specification_no_longer_has_is_passed_over(open_rim):
    rim = waiting(open_rim)
    rim.digest = rim.digest.model_copy(update={"first_period": "2025-W20"})
    assert said(rim) == NOTHING


def cause(error: BaseException) -> BaseException:
    """Return the error at the bottom of Dagster's wrappings."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@pytest.mark.parametrize("which", ["follow_ups", "cleanup", "missed_periods"])
@on_sqlite
def test_a_tick_fails_and_says_why_where_the_ledger_cannot_be_used(open_rim, monkeypatch, which):
    rim = open_rim()
    for url, kind, text in (
        (f"sqlite:///{rim.folder / 'empty.db'}", SchemaVersionError, "run 'digest db upgrade'"),
        ("postgresql+psycopg://nobody@127.0.0.1:1/none", LedgerError, "cannot be opened; is the server up"),
    ):
        monkeypatch.setenv("DIGEST_LEDGER_URL", url)
        with pytest.raises(Exception) as failed:  # noqa: PT011 - Dagster's own, whose cause is what counts
            tick(rim, which)
        found: BaseException | None = failed.value
        while found is not None and not isinstance(found, LedgerError):
            found = found.__cause__
        assert isinstance(found, kind)
        assert text in str(found)


@on_sqlite
def test_a_copy_of_the_ledger_fails_the_tick_and_starts_no_run(open_rim, monkeypatch):
    rim = waiting(open_rim)
    monkeypatch.setenv("DIGEST_ENVIRONMENT", "staging")
    with pytest.raises(EnvironmentMismatchError, match="belongs to the environment 'test'"):
        tick(rim)


def weeks_back(rim: Rim, *numbers: int) -> list[str]:
    """Return the labels of the n-th last weeks that have ended; 1 is the latest."""
    ended = rim.digest.ended_periods()
    return [ended[-number].label for number in numbers]


def long_ago(label: str) -> str:
    """Return the cursor of a sensor that has seen a period missing an hour ago."""
    return f'{{"{label}": "{(datetime.now(UTC) - timedelta(hours=1)).isoformat()}"}}'


def opened_with_a_gap(open_rim, **changes: Any) -> tuple[Rim, str]:
    """Return an installation whose latest week and the one before the last are frozen, and the one between."""
    today = datetime.now(UTC).date()
    rim: Rim = open_rim(days=[(today - timedelta(days=7 * n)).isoformat() for n in range(5)], **changes)
    third, second, first = weeks_back(rim, 3, 2, 1)
    for label in (third, first):
        rim.materialise(label)
    return rim, second


def test_a_missed_week_is_started_once_it_was_seen_missing_for_a_while(open_rim):
    rim, missed = opened_with_a_gap(open_rim)
    seen = tick(rim, "missed_periods")
    assert seen.run_requests == []
    assert seen.skip_message == "a missing period is started when it is still missing in a minute"
    assert missed in seen.cursor
    (request,) = asked(rim, "missed_periods", long_ago(missed))
    assert (request.partition_key, request.asset_selection) == (f"{missed}-1", None)
    assert request.tags[FOLLOW_UP_TAG] == "missed_period"
    done = execute(rim, request)
    assert failures(done) == {}
    assert {rim.states(label).get("cleaned") for label in weeks_back(rim, 3, 2, 1)} == {5}
    assert max(rim.accepted().values()) == 1
    after = tick(rim, "missed_periods", long_ago(missed))
    assert (after.skip_message, after.cursor) == (NOTHING, "{}")


@on_sqlite
def test_a_missed_week_whose_window_has_closed_is_frozen_and_held(open_rim):
    rim, missed = opened_with_a_gap(open_rim, delivery_window={"closes_after_hours": 1})
    assert failures(execute(rim, asked(rim, "missed_periods", long_ago(missed))[0])) == {}
    assert rim.accepted() == {}
    assert rim.shown("delivery_outcomes", missed)["status"] == "incomplete: held window_closed 5"
    assert said(rim) == NOTHING


@on_sqlite
def test_a_missed_week_that_failed_is_tried_again_but_not_at_once(open_rim):
    rim, missed = opened_with_a_gap(open_rim)
    (rim.folder / "source.db").rename(rim.folder / "away.db")
    (first,) = asked(rim, "missed_periods", long_ago(missed))
    assert not execute(rim, first).success
    assert asked(rim, "missed_periods", long_ago(missed)) == []
    (failed,) = rim.instance.get_runs(dg.RunsFilter(tags={FOLLOW_UP_TAG: "missed_period"}))
    rim.instance.add_run_tags(
        failed.run_id, {FOLLOW_UP_AT_TAG: (datetime.now(UTC) - timedelta(minutes=2)).isoformat()}
    )
    (again,) = asked(rim, "missed_periods", long_ago(missed))
    assert again.run_key != first.run_key


@pytest.mark.parametrize(("allowed", "asks"), [(0, False), (1, False), (2, True)])
@on_sqlite
def test_no_more_periods_are_caught_up_than_the_specification_says(open_rim, allowed, asks):
    rim, missed = opened_with_a_gap(open_rim, catch_up_periods=allowed)
    assert bool(asked(rim, "missed_periods", long_ago(missed))) is asks


@on_sqlite
def test_history_from_before_the_first_manifest_is_never_started(open_rim):
    rim = open_rim()
    assert said(rim, "missed_periods").startswith("no period was ever started")
    rim.materialise(*weeks_back(rim, 1))
    assert said(rim, "missed_periods") == NOTHING


def test_a_build_that_died_counts_as_missed(open_rim):
    rim, missed = opened_with_a_gap(open_rim)
    rim.materialise(missed)
    assert asked(rim, "missed_periods", long_ago(missed)) == []
    rim.sql("UPDATE manifest SET state = 'building' WHERE period = :p", p=missed)
    assert [one.partition_key for one in asked(rim, "missed_periods", long_ago(missed))] == [f"{missed}-1"]


@on_sqlite
def test_until_half_an_hour_after_its_tick_a_period_is_the_schedules(open_rim):
    from digest_pipeline.defs.jobs import tick_of
    from digest_pipeline.defs.sensors_missed import missing_periods

    rim = open_rim()
    rim.materialise()
    week = rim.period("2025-W11")
    ticks = tick_of(rim.digest, week)
    assert ticks == datetime(2025, 3, 17, 6, tzinfo=UTC)
    for now, missing in ((ticks + GRACE - timedelta(seconds=1), []), (ticks + GRACE, [week])):
        with rim.ledger.read() as conn:
            assert missing_periods(conn, rim.digest, now) == (missing, "")


@pytest.mark.parametrize("cursor", ["", "{", "[1]", '{"2025-W11": 3}', "null"])
@on_sqlite
def test_a_cursor_that_cannot_be_read_costs_a_minute(open_rim, cursor):
    rim, missed = opened_with_a_gap(open_rim)
    data = tick(rim, "missed_periods", cursor)
    assert data.run_requests == []
    assert missed in data.cursor


@on_sqlite
def test_a_cursor_from_the_future_is_of_a_clock_that_went_back(open_rim):
    rim, missed = opened_with_a_gap(open_rim)
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    data = tick(rim, "missed_periods", f'{{"{missed}": "{later}"}}')
    assert later not in data.cursor


@pytest.mark.parametrize("since", ["2025-01-01T00:00:00", "2025-01-01", "0001-01-01T00:00:00+00:00"])
@on_sqlite
def test_a_cursor_without_a_zone_or_from_the_far_past_is_read(open_rim, since):
    rim, missed = opened_with_a_gap(open_rim)
    assert [one.partition_key for one in asked(rim, "missed_periods", f'{{"{missed}": "{since}"}}')] == [
        f"{missed}-1"
    ]


@pytest.mark.parametrize("automatic", [False, True])
@on_sqlite
def test_schedule_and_sensors_start_as_the_specification_says(open_rim, automatic):
    rim = open_rim(automatic=automatic)
    repository = rim.definitions.get_repository_def()
    expected = "RUNNING" if automatic else "STOPPED"
    own = [one for one in repository.sensor_defs if one.name.startswith("tiny_digest_")]
    assert {one.name for one in own} == {
        "tiny_digest_follow_ups",
        "tiny_digest_cleanup",
        "tiny_digest_missed_periods",
    }
    assert {one.default_status.value for one in (*own, *repository.schedule_defs)} == {expected}
