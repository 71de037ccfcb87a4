"""People are told once per incident: real failed runs, planted violations, real receivers, both engines."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from digest_pipeline.defs.names import checks_job_name, job_name, period_tag
from digest_pipeline.defs.notifications import MOST_RUNS, notification_sensors
from digest_pipeline.defs.resources import Installation
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.sandbox import serialise
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger import incidents, migrate, reads
from digest_pipeline.ledger.incidents import Identity, Incident
from digest_pipeline.ledger.schema import incident
from digest_pipeline.notify.channels import Told, email_channel
from digest_pipeline.notify.incident import Facts, Finding, Kind, Severity
from digest_pipeline.notify.rehearse import rehearse
from digest_pipeline.notify.take_in import take_in
from digest_pipeline.notify.wording import as_message
from digest_pipeline.settings import Settings
from digest_pipeline_tests.harness.ledgers import LABEL, customer, run_sql, write_customers
from digest_pipeline_tests.harness.rim import Rim, failures
from digest_pipeline_tests.harness.webhook import receiver
from digest_pipeline_tests.pipeline.test_privacy import leaks, people
from digest_pipeline_tests.pipeline.violations import VIOLATIONS

on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
HOOK = {"webhook": {"env": "NOTIFY_HOOK"}, "webhook_secret": {"env": "NOTIFY_SECRET"}}
SENDER = "Alarms <alarms@sender.test>"
MAIL = {"email": {"env": "NOTIFY_MAIL"}, "sender": SENDER}
OPERATORS = ("ops@example.test", "second@example.test")
MOST_NOTICES = 100
"""What one tick tries."""
NEXT_WEEK = "2025-W11"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Set before the specification is written: what a variable holds is checked as it is read."""
    monkeypatch.setenv("NOTIFY_SECRET", "a-signing-key-of-length")
    monkeypatch.setenv("NOTIFY_MAIL", ", ".join(OPERATORS))
    monkeypatch.setenv("NOTIFY_HOOK", "http://127.0.0.1:1/hook")
    return monkeypatch


@pytest.fixture
def hook(environment):
    with receiver() as opened:
        environment.setenv("NOTIFY_HOOK", opened.url)
        yield opened


def tick(rim: Rim, sensor: str = "notify_incidents", cursor: str | None = None) -> Any:
    """Evaluate a sensor as the daemon's code server does; each starts without a cursor unless given one."""
    sensors = notification_sensors({rim.digest.name: rim.digest})
    (chosen,) = (one for one in sensors if one.name == sensor)
    resources = {"installation": Installation()}
    with dg.build_sensor_context(instance=rim.instance, cursor=cursor, resources=resources) as context:
        return chosen.evaluate_tick(context)


def break_source(rim: Rim) -> None:
    run_sql(rim.folder, "ALTER TABLE customers RENAME COLUMN opted_in TO agreed")


def mend_source(rim: Rim) -> None:
    run_sql(rim.folder, "ALTER TABLE customers RENAME COLUMN agreed TO opted_in")


def opened(rim: Rim) -> list[str]:
    with rim.ledger.read() as conn:
        return [f"{one.kind} {one.subject}" for one in incidents.open_ones(conn)]


def the_incident(rim: Rim, kind: str) -> Incident:
    with rim.ledger.read() as conn:
        (one,) = (one for one in incidents.open_ones(conn) if one.kind == kind)
    return one


def pass_waits(rim: Rim) -> None:
    rim.sql("UPDATE incident_notice SET next_try_at = 1 WHERE next_try_at IS NOT NULL")


def mails(rim: Rim) -> list[str]:
    """Return the keys of the notifications that the provider accepted, one for each acceptance."""
    keys = (one.operation_key for one in rim.sandbox.oracle().acceptances())
    return [key for key in keys if key.startswith("incident/")]


FAILED = "run_failed eligible_customers:SourceError"


def test_a_failed_run_is_told_once_however_often_it_fails_and_is_looked_at(open_rim, hook):
    rim = open_rim(notify=HOOK)
    break_source(rim)
    for _ in range(3):
        assert not rim.materialise().success
        tick(rim)
        tick(rim)
    assert hook.kinds == {FAILED: 1}
    one = the_incident(rim, "run_failed")
    assert (one.digest, one.period, one.severity, one.times) == ("tiny_digest", LABEL, "error", 3)
    (told,) = hook.told
    assert told["next"] == f"digest status --digest tiny_digest --period {LABEL}"
    assert told["run_id"] in {run.run_id for run in rim.instance.get_runs()}
    assert hook.keys == [one.id]


def test_it_is_over_when_a_run_of_that_period_succeeds_and_the_next_failure_is_a_new_one(open_rim, hook):
    rim = open_rim(notify=HOOK, days=["2025-03-05", "2025-03-12"])
    break_source(rim)
    rim.materialise()
    tick(rim)
    mend_source(rim)
    assert rim.materialise(NEXT_WEEK).success
    tick(rim)
    assert opened(rim) == [FAILED], "another period's success mends nothing here"
    assert rim.materialise().success
    tick(rim)
    assert opened(rim) == []
    (rim.folder / "source.db").rename(rim.folder / "gone.db")
    failed_again = rim.materialise("2025-W12")
    assert not failed_again.success
    tick(rim)
    assert len(set(hook.keys)) == len(hook.keys) == 2
    assert [one["period"] for one in hook.told] == [LABEL, "2025-W12"]


@on_sqlite
def test_a_run_that_failed_and_was_mended_before_anybody_looked_is_told_to_nobody(open_rim, hook):
    rim = open_rim(notify=HOOK)
    break_source(rim)
    rim.materialise()
    mend_source(rim)
    rim.materialise()
    tick(rim)
    assert hook.bodies == []
    assert opened(rim) == []


@pytest.mark.parametrize(
    "cursor",
    [
        '{"since": "2025-01-01T00:00:00", "caught_up": true}',
        '{"since": "0001-01-01T00:00:00+00:00", "caught_up": true}',
        '{"since": "9999-12-31T23:59:59+00:00", "caught_up": true}',
        '{"since": 5, "caught_up": true}',
        "[]",
    ],
)
@on_sqlite
def test_a_failure_is_told_whatever_the_cursor_says(open_rim, hook, cursor):
    rim = open_rim(notify=HOOK)
    break_source(rim)
    rim.materialise()
    moved = datetime.fromisoformat(json.loads(tick(rim, cursor=cursor).cursor)["since"])
    assert timedelta(0) <= datetime.now(UTC) - moved <= timedelta(days=1)
    assert hook.kinds == {FAILED: 1}


def test_both_sensors_together_tell_once_and_the_first_one_tells_by_itself(open_rim, hook):
    rim = open_rim(notify=HOOK)
    started = tick(rim, "notify_failed_runs").cursor
    break_source(rim)
    failed = rim.materialise()
    reacted = tick(rim, "notify_failed_runs", started)
    assert [one.dagster_run.run_id for one in reacted.dagster_run_reactions] == [failed.run_id]
    assert reacted.dagster_run_reactions[0].error is None
    assert hook.kinds == {FAILED: 1}
    tick(rim)
    tick(rim, "notify_failed_runs", started)
    assert hook.kinds == {FAILED: 1}
    assert the_incident(rim, "run_failed").times == 1


def test_two_daemons_at_once_tell_once(open_rim, hook):
    rim = open_rim(notify=HOOK | MAIL)
    break_source(rim)
    rim.materialise()
    start = Barrier(4)

    def daemon(_: int) -> None:
        start.wait(timeout=60)
        tick(rim)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(daemon, range(4)))
    assert hook.kinds == {FAILED: 1}
    assert len(mails(rim)) == len(OPERATORS)
    assert the_incident(rim, "run_failed").times == 1


@on_sqlite
def test_a_ledger_that_was_away_loses_no_failure(open_rim, hook):
    rim = open_rim(notify=HOOK)
    cursor = tick(rim).cursor
    started = tick(rim, "notify_failed_runs").cursor
    break_source(rim)
    rim.materialise()
    rim.sql("UPDATE ledger_version SET version_num = '9999'")
    with pytest.raises(dg.DagsterError):
        tick(rim, cursor=cursor)
    with pytest.raises(dg.DagsterError):
        tick(rim, "notify_failed_runs", started)
    rim.sql(f"UPDATE ledger_version SET version_num = '{migrate.head_version()}'")
    tick(rim, cursor=cursor)
    assert hook.kinds == {FAILED: 1}


@on_sqlite
def test_a_failure_from_before_the_look_back_is_nobodys_news(open_rim, hook, monkeypatch):
    rim = open_rim(notify=HOOK)
    break_source(rim)
    rim.materialise()
    monkeypatch.setattr("digest_pipeline.defs.notifications.LOOK_BACK", timedelta(0))
    tick(rim)
    assert hook.bodies == []
    tick(rim, cursor="what somebody typed")
    assert hook.bodies == []


def planted(name: str):
    return next(one for one in VIOLATIONS if one.id == name)


@pytest.mark.parametrize(
    ("name", "severity"),
    [("manifest_is_frozen-address", "critical"), ("attempts_within_policy", "error")],
)
def test_a_check_that_fails_is_told_once_and_is_over_when_it_holds(open_rim, hook, name, severity):
    rim = open_rim(notify=HOOK)
    rim.materialise()
    violation = planted(name)
    with rim.as_it_was():
        violation.plant(rim, rim.ids()[0])
        for _ in range(2):
            assert not rim.check()[violation.check].passed
            tick(rim)
    (told,) = hook.told
    assert (told["kind"], told["subject"], told["severity"]) == ("check_failed", violation.check, severity)
    assert told["period"] == LABEL
    assert told["keys"] == [rim.key_of(number) for number in violation.named]
    assert told["counts"]["violations"] == 1
    assert told["next"].startswith("digest ")
    assert the_incident(rim, "check_failed").times == 2
    assert rim.check()[violation.check].passed
    tick(rim)
    assert opened(rim) == []


def test_a_check_started_without_a_partition_is_the_periods_own_incident(open_rim, hook):
    rim = open_rim(notify=HOOK)
    rim.materialise()
    violation = planted("attempts_within_policy")
    job = rim.definitions.resolve_job_def(checks_job_name(rim.digest))

    def check() -> None:
        done = job.execute_in_process(instance=rim.instance, raise_on_error=False)
        assert violation.check in {one.check_name for one in done.get_asset_check_evaluations()}
        tick(rim)

    with rim.as_it_was():
        violation.plant(rim, rim.ids()[0])
        rim.check()
        tick(rim)
        check()
        assert the_incident(rim, "check_failed").times == 2
    assert [(one["subject"], one["period"]) for one in hook.told] == [(violation.check, LABEL)]
    check()
    assert opened(rim) == [], "and it closes with a check that named no period either"


@on_sqlite
def test_checks_of_others_in_a_run_of_ours_are_passed_over(open_rim, hook):
    """Their words may say anything, and nobody here can mend them."""
    rim = open_rim(notify=HOOK)
    rim.materialise()
    (theirs, ours) = (dg.AssetKey(["theirs", "rows"]), dg.AssetKey([rim.digest.name, "delivery_outcomes"]))

    @dg.asset_check(asset=theirs, name="no_duplicate_sends")
    def of_their_asset() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description="ann@example.test", metadata={"period": LABEL})

    @dg.asset_check(asset=ours, name="their_idea")
    def of_our_asset() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description="ann@example.test")

    definitions = dg.Definitions(
        asset_checks=[of_their_asset, of_our_asset],
        jobs=[dg.define_asset_job("both", selection=dg.AssetSelection.all_asset_checks())],
    )
    done = definitions.resolve_job_def("both").execute_in_process(
        instance=rim.instance, tags=period_tag(rim.digest, rim.period())
    )
    assert [one.passed for one in done.get_asset_check_evaluations()] == [False, False]
    with capture_logs() as logs:
        tick(rim)
    assert hook.bodies == []
    assert opened(rim) == []
    assert "ann@" not in repr(logs)


def test_a_blocking_check_that_stops_its_run_is_one_incident(open_rim, hook):
    rim = open_rim(notify=HOOK)
    rim.materialise()
    planted("manifest_is_frozen-address").plant(rim, rim.ids()[0])
    assert not rim.materialise().success
    tick(rim)
    assert hook.kinds == {"check_failed manifest_is_frozen": 1}


@on_sqlite
def test_a_warning_is_only_logged(open_rim, hook):
    """A violation in another period is a warning of this one's check."""
    rim = open_rim(notify=HOOK, days=["2025-03-05", "2025-03-12"])
    rim.materialise()
    rim.materialise(NEXT_WEEK)
    planted("no_duplicate_sends-two_messages").plant(rim, rim.ids()[0])
    assert rim.check(NEXT_WEEK)["no_duplicate_sends"].severity is dg.AssetCheckSeverity.WARN
    with capture_logs() as logs:
        tick(rim)
        tick(rim)
    assert hook.bodies == []
    warned = [one for one in logs if one["event"] == "incident_opened"]
    assert [(one["kind"], one["log_level"], one["period"]) for one in warned] == [
        ("check_warned", "warning", NEXT_WEEK)
    ]


def test_a_halt_is_one_incident_although_its_runs_fail_and_it_ends_with_an_acceptance(open_rim, hook):
    rim = open_rim(notify=HOOK)
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1_000))
    assert not rim.materialise().success
    tick(rim)
    assert not rim.materialise().success
    tick(rim)
    assert {kind.split()[0] for kind in hook.kinds} == {"sending_halted"}
    assert sum(hook.kinds.values()) == 1
    assert hook.told[0]["severity"] == "critical"
    rim.sandbox.control.clear_faults()
    assert failures(rim.materialise()) == {}
    tick(rim)
    assert opened(rim) == []


def test_an_unknown_that_no_evidence_will_settle_is_told_with_its_command(open_rim, hook):
    rim = open_rim(
        notify=HOOK, gateway={"settings": {"idempotency": "none", "look_up": "false"}}
    )  # merges with the sandbox's url
    rim.sandbox.change(idempotency="none", look_up=False)
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(2)]))
    rim.materialise()
    tick(rim)
    told = next(one for one in hook.told if one["kind"] == "unknown_held")
    assert (told["subject"], told["counts"], told["keys"]) == ("no_evidence", {"unknown": 1}, [rim.key_of(2)])
    assert told["next"] == f"digest unknowns list --digest tiny_digest --period {LABEL}"
    before = len(hook.bodies)
    tick(rim)
    assert len(hook.bodies) == before
    rim.sql(
        "UPDATE delivery SET state = 'written_off', finished_at = 1, hold_reason = NULL WHERE ordinal = 2"
    )
    tick(rim)
    assert not any(one.startswith("unknown_held") for one in opened(rim))


def test_what_was_ready_and_not_sent_before_its_window_closed_is_told(open_rim, hook):
    rim = open_rim(notify=HOOK)
    rim.materialise()
    rim.sql(
        "UPDATE delivery SET state = 'pending', due_at = 1, proof = NULL, finished_at = NULL, cleaned_at = NULL, "
        "cleaned_by = NULL WHERE ordinal IN (2, 3)"
    )
    tick(rim)
    assert hook.bodies == []
    rim.sql("UPDATE manifest SET window_closes_at = content_sealed_at + 1")
    tick(rim)
    tick(rim)
    (told,) = hook.told
    assert (told["kind"], told["counts"]) == ("window_closed", {"unsent": 2})
    assert told["keys"] == [rim.key_of(2), rim.key_of(3)]
    assert "--allow-late" in told["next"]
    rim.sql("UPDATE delivery SET state = 'dead', failure_class = 'window', finished_at = 1, due_at = NULL "
            "WHERE state = 'pending'")  # fmt: skip
    tick(rim)
    assert opened(rim) == []


@on_sqlite
def test_a_backfill_over_weeks_long_past_tells_nobody_that_they_were_not_sent(open_rim, hook):
    rim = open_rim(
        notify=HOOK,
        delivery_window={"closes_after_hours": 72},
        days=["2025-03-05", "2025-03-12"],
        objective={"coverage": 0},
    )
    for label in (LABEL, NEXT_WEEK):
        rim.materialise(label)
        assert rim.summary(label).held == {"window_closed": 5}
    tick(rim)
    assert hook.bodies == []


def test_a_period_that_nobody_ran_is_told_once_its_window_is_over(open_rim, hook):
    rim = open_rim(notify=HOOK, first_period="2024-W01", delivery_window={"closes_after_hours": 72})
    rim.materialise()
    tick(rim)
    assert not any(one["kind"] == "period_missed" for one in hook.told), "it came into use just now"
    missed = rim.digest.ended_periods(datetime.now(UTC) - timedelta(hours=72))[-1]
    begun = int((missed.start - timedelta(days=1)).timestamp() * 1e6)
    rim.sql("UPDATE manifest SET selected_at = :at", at=begun)
    for _ in range(2):
        tick(rim)
    told = [one["period"] for one in hook.told if one["kind"] == "period_missed"]
    assert missed.label in told
    assert len(told) == len(set(told))


@on_sqlite
def test_a_retry_that_is_coming_by_itself_wakes_nobody_until_it_has_failed_too(open_rim, hook):
    rim = open_rim(notify=HOOK)
    break_source(rim)
    failed = rim.materialise()
    rim.instance.add_run_tags(failed.run_id, {"dagster/will_retry": "true"})
    tick(rim)
    assert hook.bodies == []
    rim.instance.add_run_tags(failed.run_id, {"dagster/will_retry": "false"})
    tick(rim)
    assert hook.kinds == {FAILED: 1}


def planted_run(rim: Rim, status: str, **more: Any) -> dg.DagsterRun:
    """A run without any step, as Dagster stores one whose process was killed, or that was stopped."""
    job = rim.definitions.resolve_job_def(job_name(rim.digest))
    period = rim.period()
    tags = {**period_tag(rim.digest, period), "dagster/partition": period.partition_key}
    run = rim.instance.create_run_for_job(job, tags=tags | more.pop("tags", {}), **more)
    if status == "failed":
        rim.instance.report_run_failed(run, "Run timed out")
    else:
        rim.instance.report_run_canceled(run)
    return run


@on_sqlite
def test_a_run_whose_process_died_is_told_and_a_success_of_the_job_mends_it(open_rim, hook):
    rim = open_rim(notify=HOOK)
    planted_run(rim, "failed")
    tick(rim)
    assert hook.kinds == {"run_failed tiny_digest_weekly:unknown": 1}
    assert "killed" in hook.told[0]["text"]
    rim.materialise()
    tick(rim)
    assert opened(rim) == []


@on_sqlite
def test_a_canceled_run_is_logged_and_nobody_is_woken(open_rim, hook):
    rim = open_rim(notify=HOOK)
    run = planted_run(rim, "canceled")
    with capture_logs() as logs:
        tick(rim)
        tick(rim)
    assert hook.bodies == []
    (line,) = (one for one in logs if one["event"] == "incident_opened")
    assert (line["kind"], line["log_level"], line["run_id"]) == ("run_canceled", "info", run.run_id)


@on_sqlite
def test_one_asset_materialised_from_the_ui_concerns_its_digest_and_mends_what_it_did(open_rim, hook):
    rim = open_rim(notify=HOOK)
    key = dg.AssetKey([rim.digest.name, "eligible_customers"])
    job = rim.definitions.resolve_implicit_global_asset_job_def()
    partition = rim.period().partition_key

    def materialise_it() -> bool:
        done = job.execute_in_process(
            instance=rim.instance, asset_selection=[key], partition_key=partition, raise_on_error=False
        )
        return bool(done.success)

    break_source(rim)
    assert not materialise_it()
    tick(rim)
    assert hook.kinds == {FAILED: 1}
    assert hook.told[0]["period"] == LABEL
    mend_source(rim)
    assert materialise_it()
    tick(rim)
    assert opened(rim) == []


def order(rim: Rim, **config: Any) -> dg.ExecuteInProcessResult:
    return rim.definitions.resolve_job_def("close").execute_in_process(
        instance=rim.instance,
        run_config={
            "ops": {"close_period": {"config": {"by": "ann", "reason": "x", **config}}},
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        },
        raise_on_error=False,
    )


@on_sqlite
def test_an_order_that_fails_concerns_the_digest_in_its_form_and_else_the_log(open_rim, hook):
    rim = open_rim(notify=HOOK)
    assert not order(rim, digest="tiny_digest", period="2031-W10").success
    assert not order(rim, digest="no_such_digest", period=LABEL).success
    with capture_logs() as logs:
        tick(rim)
    assert hook.kinds == {"order_failed close:PeriodError": 1}
    assert hook.told[0]["period"] == "2031-W10"
    assert "2031-W10" in hook.told[0]["text"]
    lines = [one for one in logs if one["event"] == "incident_opened"]
    assert sorted(one["digest"] for one in lines) == ["", "tiny_digest"]


@on_sqlite
def test_an_order_over_a_wrong_period_is_over_when_the_same_job_succeeds_with_another(open_rim, hook):
    rim = open_rim(notify=HOOK)
    rim.materialise()
    for wrong in ("2025-W99", "2031-W10"):
        assert not order(rim, digest="tiny_digest", period=wrong).success
        tick(rim)
    assert [one.split(":")[0] for one in opened(rim)] == ["order_failed close"] * 2
    assert [one["period"] for one in hook.told] == ["", "2031-W10"]
    rim.close_windows()
    assert order(rim, digest="tiny_digest", period=LABEL).success
    tick(rim)
    assert opened(rim) == []


@on_sqlite
def test_an_order_that_succeeds_mends_no_failed_run(open_rim, hook):
    rim = open_rim(notify=HOOK, days=["2025-03-05", "2025-03-12"])
    rim.materialise()
    break_source(rim)
    assert not rim.materialise(NEXT_WEEK).success
    rim.close_windows()
    for label in (LABEL, NEXT_WEEK):
        order(rim, digest="tiny_digest", period=label)
    tick(rim)
    assert FAILED in opened(rim)


@on_sqlite
def test_more_runs_than_a_page_are_read_page_by_page(open_rim, hook, monkeypatch):
    assert MOST_RUNS > 2
    monkeypatch.setattr("digest_pipeline.defs.notifications.MOST_RUNS", 2)
    rim = open_rim(notify=HOOK)
    for _ in range(5):
        planted_run(rim, "canceled")
    break_source(rim)
    rim.materialise()
    cursor, seen = None, []
    for _ in range(5):
        cursor = tick(rim, cursor=cursor).cursor
        seen.append(json.loads(cursor)["caught_up"])
    assert hook.kinds == {FAILED: 1}
    assert seen[0] is False, "the first page is full: there are more runs than it takes"
    assert set(seen) == {False, True}, "and once all were read, it knows"


@on_sqlite
def test_a_receiver_that_is_down_is_told_when_it_is_back_and_once(open_rim, hook):
    rim = open_rim(notify=HOOK)
    hook.answers[:] = [500, 0, 503]
    break_source(rim)
    rim.materialise()
    for tries in (1, 2, 3):
        tick(rim)
        tick(rim)
        assert len(hook.bodies) == tries, "a second look does not try before the wait is over"
        pass_waits(rim)
    tick(rim)
    pass_waits(rim)
    tick(rim)
    assert len(hook.bodies) == 4
    assert len(set(hook.keys)) == 1
    assert len(set(hook.bodies)) == 1, "every try says the same"


def test_each_recipient_gets_one_mail_through_the_gateway_and_its_gate(open_rim):
    rim = open_rim(notify=MAIL)
    break_source(rim)
    rim.materialise()
    with capture_logs() as logs:
        for _ in range(3):
            tick(rim)
            pass_waits(rim)
    found = mails(rim)
    assert len(found) == len(set(found)) == len(OPERATORS)
    hashes = {one.recipient_hash for one in rim.sandbox.oracle().acceptances()}
    assert hashes == {hashlib.sha256(address.encode()).hexdigest() for address in OPERATORS}
    assert not any(operator in repr(logs) for operator in OPERATORS)
    assert rim.sql("SELECT count(*) FROM rate_gate")[0][0] == 1


def test_a_mail_whose_answer_was_lost_is_offered_again_under_its_key_and_accepted_once(open_rim):
    rim = open_rim(notify=MAIL)
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, next=1))
    break_source(rim)
    rim.materialise()
    for _ in range(3):
        tick(rim)
        pass_waits(rim)
    assert rim.sandbox.control.statistics()["arrivals"] == len(OPERATORS) + 1
    assert len(mails(rim)) == len(OPERATORS)
    assert {row.outcome for row in rim.sql("SELECT outcome FROM incident_notice")} == {"accepted"}


def test_where_keys_are_not_repeated_a_doubtful_mail_counts_as_told(open_rim):
    rim = open_rim(notify=MAIL, gateway={"settings": {"idempotency": "none"}})
    rim.sandbox.change(idempotency="none")
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, next=1))
    break_source(rim)
    rim.materialise()
    with capture_logs() as logs:
        for _ in range(3):
            tick(rim)
            pass_waits(rim)
    assert rim.sandbox.control.statistics()["arrivals"] == len(OPERATORS)
    assert sorted(str(row.outcome) for row in rim.sql("SELECT outcome FROM incident_notice")) == [
        "accepted", "accepted", "doubtful",
    ]  # fmt: skip
    assert [one["outcome"] for one in logs if one["event"] == "notice_not_delivered"] == [
        "no_answer",
        "doubtful",
    ]


def test_an_account_that_is_halted_carries_no_news_and_its_probe_is_left_alone(open_rim, hook):
    rim = open_rim(notify=HOOK | MAIL)
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1_000))
    rim.materialise()
    before = rim.sandbox.control.statistics()["arrivals"]
    rim.sql("UPDATE rate_gate SET probe_at = 1")
    tick(rim)
    assert [one["kind"] for one in hook.told] == ["sending_halted"]
    assert rim.sandbox.control.statistics()["arrivals"] == before
    rim.sandbox.control.clear_faults()
    rim.sql("UPDATE rate_gate SET halt_reason = NULL, probe_at = NULL")
    rim.sql("UPDATE delivery SET state = 'unknown', due_at = NULL, ambiguous_at = 1, hold_reason = 'integrity', "
            "lease_ends = NULL WHERE ordinal = 1")  # fmt: skip
    tick(rim)
    assert opened(rim) == ["unknown_held integrity"]
    of_what = {key.split("/")[1] for key in mails(rim)}
    assert of_what == {the_incident(rim, "unknown_held").id}, "the halt is over: told to nobody any more"


def open_test_incident(rim: Rim, subject: str) -> None:
    with rim.ledger.read() as conn:
        at = reads.now(conn)
    what = Identity(Kind.TEST, rim.digest.name, "", subject)
    take_in(rim.ledger, rim.digest, Finding(what, Severity.CRITICAL, Facts("a test"), at))


def test_what_is_new_is_told_although_more_mails_than_a_tick_takes_wait_for_permits(open_rim, hook):
    rim = open_rim(notify=HOOK | MAIL)
    rim.materialise()
    rim.sql("UPDATE rate_gate SET halt_reason = 'account: 401', probe_at = 9000000000000000")
    for number in range(MOST_NOTICES // len(OPERATORS) + 1):
        open_test_incident(rim, f"old {number}")
    rim.sql("UPDATE incident_notice SET tries = 1, told_at = 1, next_try_at = NULL, outcome = 'accepted' "
            "WHERE channel NOT LIKE 'email:%'")  # fmt: skip
    open_test_incident(rim, "new")
    with capture_logs() as logs:
        tick(rim)
    assert [one["subject"] for one in hook.told if one["kind"] == "test"] == ["new"]
    assert "new" in {one["subject"] for one in logs if one["event"] == "incident_opened"}
    assert mails(rim) == []


@on_sqlite
def test_what_another_code_location_has_is_left_to_it(open_rim, hook):
    rim = open_rim(notify=HOOK | MAIL)
    open_test_incident(rim, "ours")
    other = rim.digest.model_copy(update={"name": "other_digest"})
    (chosen,) = (one for one in notification_sensors({other.name: other}) if one.name == "notify_incidents")
    resources = {"installation": Installation()}
    with dg.build_sensor_context(instance=rim.instance, resources=resources) as context:
        assert chosen.evaluate_tick(context).skip_message == "read 0 runs; told: nobody"
    assert {row.tries for row in rim.sql("SELECT tries FROM incident_notice")} == {0}
    tick(rim)
    assert hook.kinds == {"test ours": 1}
    assert len(mails(rim)) == len(OPERATORS)


def test_more_recipients_than_a_burst_are_all_mailed_at_once_and_at_the_promised_rate(open_rim, environment):
    recipients = [f"ops{number}@example.test" for number in range(6)]
    environment.setenv("NOTIFY_MAIL", ",".join(recipients))
    rim = open_rim(notify=MAIL, rate={"per_second": 2, "burst": 2})
    tried = rehearse(rim.ledger, Settings.from_environment(), rim.digest)
    assert len(tried) == 1 + len(recipients)
    assert {one and one.told for one in tried.values()} == {Told.YES}
    oracle = rim.sandbox.oracle()
    hashes = [one.recipient_hash for one in oracle.acceptances()]
    assert sorted(hashes) == sorted(hashlib.sha256(one.encode()).hexdigest() for one in recipients)
    for seconds in (0.01, 0.5, 1, 2):
        assert oracle.max_arrivals(seconds) <= 2 * seconds + 2


@on_sqlite
def test_nothing_is_mailed_where_sending_is_off_or_from_a_copy_or_through_a_paused_gateway(
    open_rim, hook, monkeypatch
):
    rim = open_rim(notify=HOOK | MAIL)
    break_source(rim)
    rim.materialise()
    ((own,),) = rim.sql("SELECT fingerprint FROM ledger_identity")
    rim.sql("UPDATE ledger_identity SET fingerprint = 'another'")
    tick(rim)
    assert hook.kinds == {FAILED: 1}
    assert rim.sandbox.control.statistics()["arrivals"] == 0
    rim.sql("UPDATE ledger_identity SET fingerprint = :own", own=own)
    rim.sql("INSERT INTO pause (kind, name, since_at) VALUES ('gateway', 'sandbox', 1)")
    tick(rim)
    assert rim.sandbox.control.statistics()["arrivals"] == 0, "a paused gateway carries nothing at all"
    monkeypatch.setenv("DIGEST_SENDING", "off")
    with capture_logs() as logs:
        tick(rim)
    assert rim.sandbox.control.statistics()["arrivals"] == 0
    assert {one["why"] for one in logs if one["event"] == "notice_not_delivered"} == {"sending is off"}


@on_sqlite
def test_a_channel_that_cannot_be_used_stops_the_code_location_from_loading(open_rim, monkeypatch):
    rim = open_rim(notify=HOOK)
    monkeypatch.delenv("NOTIFY_HOOK")
    with pytest.raises(SpecError, match=r"tiny_digest: notify\.webhook: .*NOTIFY_HOOK is not set"):
        notification_sensors({rim.digest.name: rim.digest})


@on_sqlite
def test_nothing_of_a_customer_is_in_webhook_mail_or_log(open_rim, hook):
    rim = open_rim(notify=HOOK | MAIL, customers=0)
    write_customers(rim.folder, people()[:5])
    rim.materialise()
    for name in ("manifest_is_frozen-address", "attempts_within_policy", "no_unknown_past_retention"):
        with rim.as_it_was():
            planted(name).plant(rim, rim.ids()[0])
            rim.check()
    template = rim.folder / "specs" / "template" / "body.txt.j2"
    template.write_text("{{ customer.name.nothing() }}{{ items[0].item / 2 }}", encoding="utf-8")
    write_customers(rim.folder, [customer(9, orders=("2025-03-12",), name=people()[0]["name"])])
    assert not rim.materialise(NEXT_WEEK).success
    order(rim, digest="tiny_digest", period=str(people()[0]["email"]))
    with capture_logs() as logs:
        tick(rim)
    kinds = {one["kind"] for one in hook.told}
    assert kinds == {"check_failed", "run_failed", "order_failed"}
    mailed = mailed_bodies(rim)
    assert len(mailed) == len(hook.bodies) * len(OPERATORS)
    assert leaks("\n".join(map(bytes.decode, [*hook.bodies, *mailed])) + repr(logs)) == []
    assert not any(operator in repr(logs) + repr(hook.told) for operator in OPERATORS)


def mailed_bodies(rim: Rim) -> list[bytes]:
    """Return the notifications that the provider took, as it took them: its store has only their hashes."""
    with rim.ledger.read() as conn:
        rows = conn.execute(select(incident)).mappings()
        messages = [(one.id, as_message(one, SENDER, "")) for one in (Incident(**r) for r in rows)]
    bodies = []
    for address in OPERATORS:
        suffix = email_channel(address).removeprefix("email:")
        made = [
            serialise(Envelope(f"incident/{id_}/{suffix}", address, message)) for id_, message in messages
        ]
        bodies += made
    taken = {one.body_hash for one in rim.sandbox.oracle().acceptances()}
    return [body for body in bodies if hashlib.sha256(body).hexdigest() in taken]


@on_sqlite
def test_the_log_is_told_first_and_also_when_everything_else_is_down(open_rim, monkeypatch):
    rim = open_rim(notify=HOOK)  # nobody listens there
    break_source(rim)
    rim.materialise()
    with capture_logs() as logs:
        tick(rim)
    assert [one["event"] for one in logs if one["event"].startswith(("incident", "notice"))] == [
        "incident_opened",
        "notice_not_delivered",
    ]
    assert "127.0.0.1" not in repr([one for one in logs if one["event"].startswith("notice")])
    assert opened(rim) == [FAILED]
