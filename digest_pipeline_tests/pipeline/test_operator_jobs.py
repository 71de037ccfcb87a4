"""The operator's jobs in the Launchpad: what each does to the ledger, and what it leaves in the trail."""

import json
from typing import Any

import dagster as dg
import pytest

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.defs.operator_forms import MOST_KEYS_IN_CONFIG
from digest_pipeline.defs.operator_jobs import operator_jobs
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.operations import key_files
from digest_pipeline.operations.key_files import Selection
from digest_pipeline.spec_loading import load_folder
from digest_pipeline_tests.harness.ledgers import LABEL
from digest_pipeline_tests.harness.rim import Rim, write_spec

OPS = {
    "replay": "order_replay",
    "approve_replay": "approve_order",
    "resolve": "resolve_unknowns",
    "pause": "pause_scope",
    "resume": "resume_scope",
    "close": "close_period",
    "erase": "erase_customer",
}
SIGNED = {"by": "ann", "reason": "the provider is mended"}
PERIOD = {"digest": "tiny_digest", "period": LABEL}
NO_EVIDENCE = {"gateway": {"settings": {"idempotency": "none", "look_up": "false"}}}

on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)


def run(rim: Rim, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    """Launch one of the operator's jobs as the Launchpad does, with a form's fields."""
    return rim.definitions.resolve_job_def(job).execute_in_process(
        instance=rim.instance,
        run_config={
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            "ops": {OPS[job]: {"config": {**SIGNED, **config}}},
        },
        raise_on_error=False,
    )


def shown(done: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the output metadata of a job's only step, as plain values."""
    assert done.success, failure(done)
    (output,) = [event for event in done.all_events if event.is_successful_output]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


def failure(done: dg.ExecuteInProcessResult) -> dg.Failure:
    """Return what a person reads in the UI about a job that failed."""
    assert not done.success
    (event,) = [event for event in done.all_events if event.is_step_failure]
    told = event.step_failure_data.user_failure_data
    assert told is not None, event.step_failure_data.error
    return dg.Failure(told.description, metadata=told.metadata)


def refuse(rim: Rim, *numbers: int) -> None:
    keys = [rim.key_of(n) for n in numbers]
    rim.sandbox.control.script(Rule(Fault.INVALID_RECIPIENT_422, keys=keys))


def test_a_replay_is_a_dry_run_until_it_is_applied_and_the_next_run_sends_it(open_rim):
    rim = open_rim()
    refuse(rim, 2)
    rim.materialise()
    order = {**PERIOD, "keys": [rim.key_of(1), rim.key_of(2)]}
    dry = shown(run(rim, "replay", **order))
    assert (dry["applied"], dry["would_change"], dry["refused"]) == (False, 1, 1)
    assert "nothing was changed; apply: true does it" in dry["notes"]
    assert (rim.states()["failed"], rim.actions()) == (1, [])
    done = shown(run(rim, "replay", **order, apply=True))
    assert (done["applied"], done["changed"], done["keys"]) == (True, 1, [rim.key_of(2)])
    assert done["refused_keys"] == {rim.key_of(1): "an attempt was accepted: a replay could be a second mail"}
    (action,) = rim.actions()
    assert (action.kind, action.who, action.reason, action.period) == (
        "replay",
        "ann",
        "the provider is mended",
        LABEL,
    )
    assert rim.materialise().success
    assert rim.accepted() == {rim.key_of(n): 1 for n in range(1, 6)}


def test_a_replay_of_nothing_but_refused_keys_fails_and_says_why_of_each(open_rim):
    rim = open_rim()
    rim.materialise()
    told = failure(run(rim, "replay", **PERIOD, keys=[rim.key_of(1), "reader@example.test"], apply=True))
    assert told.description == "every key was refused"
    refused = told.metadata["refused_keys"].value
    assert refused == {
        rim.key_of(1): "an attempt was accepted: a replay could be a second mail",
        "number 2 of the keys": "not an operation key",
    }
    assert rim.actions() == []


def test_a_replay_takes_a_key_file_that_the_worker_can_read_and_refuses_one_that_was_edited(
    open_rim, tmp_path
):
    rim = open_rim()
    refuse(rim, 1, 3)
    rim.materialise()
    file = tmp_path / "dead.txt"
    selection = Selection("tiny_digest", LABEL, key_files.DEAD_LETTERS, "recipient")
    key_files.write(file, selection, [rim.key_of(1), rim.key_of(3)])
    assert shown(run(rim, "replay", **PERIOD, key_file=str(file), apply=True))["changed"] == 2
    file.write_text(file.read_text().replace(rim.key_of(3), rim.key_of(2)))
    told = failure(run(rim, "replay", **PERIOD, key_file=str(file), apply=True))
    assert "its checksum is another" in (told.description or "")
    assert len(rim.actions()) == 1


def test_above_the_configured_count_a_replay_waits_for_somebody_else(open_rim):
    rim = open_rim(replay={"approve_above": 1})
    refuse(rim, 1, 2)
    rim.materialise()
    asked = shown(run(rim, "replay", **PERIOD, keys=[rim.key_of(1), rim.key_of(2)], apply=True))
    assert (asked["applied"], rim.states()["failed"]) == (False, 2)
    number = asked["waits_for_approval"]
    told = failure(run(rim, "approve_replay", number=number, apply=True))
    assert "somebody else has to approve it" in (told.description or "")
    dry = shown(run(rim, "approve_replay", number=number, by="bob"))
    assert (dry["would_change"], rim.states()["failed"]) == (2, 2)
    assert shown(run(rim, "approve_replay", number=number, by="bob", apply=True))["changed"] == 2
    assert rim.states()["retry"] == 2
    assert [(one.kind, one.who, one.approver) for one in rim.actions()] == [("replay", "ann", "bob")] * 2


@pytest.mark.parametrize(
    ("verdict", "state"), [("SENT", "sent"), ("NOT_SENT", "retry"), ("WRITTEN_OFF", "written_off")]
)
def test_unknowns_are_settled_by_a_verdict_of_the_form(open_rim, verdict, state):
    rim = open_rim(**NO_EVIDENCE)
    rim.sandbox.change(idempotency="none", look_up=False)
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(2)]))
    rim.materialise()
    order = {**PERIOD, "keys": [rim.key_of(2)], "verdict": verdict}
    assert shown(run(rim, "resolve", **order))["would_change"] == 1
    assert rim.states()["unknown"] == 1
    assert shown(run(rim, "resolve", **order, apply=True))["changed"] == 1
    assert rim.states()[state] == 1
    (action,) = rim.actions()
    assert (action.kind, json.loads(action.effect)["resolved"]) == ("resolve", 1)


@pytest.mark.parametrize(
    ("scope", "row"),
    [
        ({"scope": "DIGEST", "digest": "tiny_digest"}, "digest tiny_digest"),
        ({"scope": "TENANT", "digest": "tiny_digest", "tenant": "default"}, "tenant tiny_digest/default"),
        ({"scope": "GATEWAY", "gateway": "sandbox"}, "gateway sandbox"),
    ],
)
def test_a_pause_takes_effect_at_once_and_a_resume_takes_it_back(open_rim, scope, row):
    rim = open_rim()
    done = shown(run(rim, "pause", **scope))
    assert (done["paused"], done["changed"]) == (row, True)
    rim.materialise()
    assert (rim.states(), rim.accepted()) == ({"pending": 5}, {})
    assert shown(run(rim, "pause", **scope))["changed"] is False
    assert shown(run(rim, "resume", **scope))["changed"] is True
    rim.materialise()
    assert rim.accepted() == {rim.key_of(n): 1 for n in range(1, 6)}
    assert [one.kind for one in rim.actions()] == ["pause", "resume"]


def test_a_period_whose_window_is_over_is_closed(open_rim):
    rim = open_rim()
    run(rim, "pause", scope="DIGEST", digest="tiny_digest")
    rim.materialise()
    early = failure(run(rim, "close", **PERIOD, apply=True))
    assert "may be sent until" in (early.description or "")
    rim.close_windows()
    assert shown(run(rim, "close", **PERIOD))["would_end"] == 5
    assert rim.states() == {"pending": 5}
    assert shown(run(rim, "close", **PERIOD, apply=True))["ended"] == 5
    assert rim.states() == {"dead": 5}
    assert [one.kind for one in rim.actions()] == ["pause", "close"]


def test_an_erased_customer_keeps_nothing_but_the_key_and_the_outcome(open_rim):
    rim = open_rim()
    rim.materialise()
    assert shown(run(rim, "erase", customer="customer-001")) == {
        "entries": 1,
        "cancelled": 0,
        "applied": False,
    }
    assert shown(run(rim, "erase", customer="customer-001", apply=True))["applied"] is True
    left = rim.sql("SELECT customer_id FROM manifest_entry WHERE recipient IS NULL AND name IS NULL")
    assert [row.customer_id for row in left] == ["customer-001"]
    (action,) = rim.actions()
    assert (action.kind, json.loads(action.keys)) == ("erase", [rim.key_of(1)])


@on_sqlite
@pytest.mark.parametrize(
    ("job", "form", "says"),
    [
        ("replay", {"digest": "tiny_digets", "period": LABEL, "keys": ["k"]}, "there are: tiny_digest"),
        ("replay", {"digest": "tiny_digest", "period": "2025-W54", "keys": ["k"]}, "2025-W54"),
        ("replay", {**PERIOD, "keys": []}, "no keys were given"),
        ("replay", {**PERIOD, "keys": ["k"], "reason": " "}, "needs a reason"),
        ("replay", {**PERIOD, "keys": ["k"], "by": ""}, "needs to say who"),
        ("replay", {**PERIOD, "keys": ["k"], "hours": 9999.0}, "a permission lasts"),
        ("replay", {**PERIOD, "keys": ["@/etc/hostname"]}, "key_file"),
        (
            "replay",
            {**PERIOD, "keys": [f"k{n}" for n in range(MOST_KEYS_IN_CONFIG + 1)]},
            "use key_file",
        ),
        ("replay", {**PERIOD, "key_file": "/nowhere/at/all"}, "cannot be read"),
        ("resolve", {**PERIOD, "keys": [], "verdict": "SENT"}, "no keys were given"),
        ("approve_replay", {"number": 4711}, "no replay number 4711 waits"),
        ("pause", {"scope": "DIGEST", "digest": "tiny_digets"}, "there are: tiny_digest"),
        ("pause", {"scope": "DIGEST", "digest": "tiny_digest", "tenant": "default"}, "scope DIGEST needs digest"),
        ("pause", {"scope": "TENANT", "digest": "tiny_digest"}, "scope TENANT needs digest and tenant"),
        ("pause", {"scope": "TENANT", "digest": "tiny_digest", "tenant": "acem"}, "there are: default"),
        ("pause", {"scope": "GATEWAY", "gateway": "sandbx"}, "no gateway kind"),
        ("resume", {"scope": "GATEWAY"}, "scope GATEWAY needs gateway"),
        ("close", {**PERIOD, "by": " "}, "needs to say who"),
        ("close", {**PERIOD}, "has no manifest"),
        ("erase", {"customer": "nobody"}, "no customer"),
        ("erase", {"customer": "nobody", "digest": "other"}, "there are: tiny_digest"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_used_fails_saying_why_and_writes_nothing(open_rim, job, form, says):
    rim = open_rim(customers=1)
    assert says in (failure(run(rim, job, **form)).description or "")
    assert rim.actions() == []
    assert rim.sql("SELECT count(*) AS n FROM pause")[0].n == 0


@on_sqlite
def test_nothing_that_a_person_types_brings_an_address_into_dagsters_records(open_rim):
    rim = open_rim(customers=2)
    refuse(rim, 1)
    rim.materialise()
    done = run(
        rim,
        "replay",
        **PERIOD,
        keys=[rim.key_of(1), "reader-2@example.test"],
        reason="reader-1@example.test wrote to us",
        apply=True,
    )
    assert shown(done)["changed"] == 1
    logged = [record.user_message for record in rim.instance.all_logs(done.run_id)]
    logged += [str(event) for event in done.all_events]
    # What stays is the form itself, as it was filled in.
    assert [line for line in logged if "@example.test" in line] == []


@pytest.mark.parametrize("job", OPS)
def test_every_job_says_what_it_does_and_whether_it_is_a_dry_run(job):
    (found,) = [one for one in operator_jobs() if one.name == job]
    described = found.description or ""
    at_once = job in ("pause", "resume")
    assert ("AT ONCE" in described) is at_once
    assert ("DRY RUN unless `apply`" in described) is not at_once
    (op,) = found.nodes
    assert op.name == OPS[job]
    definition: Any = op.definition
    fields = definition.config_schema.config_type.fields
    assert all(field.description for field in fields.values())
    assert fields["by"].is_required
    assert fields["reason"].is_required
    if not at_once:
        assert fields["apply"].default_value is False


def test_there_is_one_set_of_them_whatever_the_number_of_digests(tmp_path):
    write_spec(tmp_path, name="weekly_one")
    write_spec(tmp_path, name="daily_one", cadence="daily", first_period="2025-01-01")
    jobs = [job.name for job in build_definitions(load_folder(tmp_path)).resolve_all_job_defs()]
    assert sorted(name for name in jobs if name in OPS) == sorted(OPS)


def test_an_order_is_never_repeated_by_dagster_and_passes_what_waits_in_the_queue():
    for job in operator_jobs():
        assert job.tags["dagster/max_retries"] == "0"
        assert int(job.tags["dagster/priority"]) > 0
