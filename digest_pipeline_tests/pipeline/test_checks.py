"""Every asset check, proven by planting what it must catch: raw SQL, in a finished period."""

import asyncio
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
import dagster as dg
import pytest

from digest_pipeline.cli.main import cli
from digest_pipeline.defs.checks import CHECKS
from digest_pipeline.defs.names import checks_job_name
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline_tests.harness.postgres import ENGINES
from digest_pipeline_tests.harness.rim import Rim, failures, rim_at
from digest_pipeline_tests.harness.sandbox import API_KEY, as_new, envelope
from digest_pipeline_tests.pipeline.violations import VIOLATIONS, second_acceptance

HERE, THERE = "2025-W10", "2025-W11"
DAYS = ("2025-03-05", "2025-03-12")
LISTED = "provider_lists_what_it_accepted"
"""The one check that only the provider can answer; what it must catch is planted there."""


@pytest.fixture(scope="module", params=ENGINES)
def finished(request, tmp_path_factory, shared_sandbox) -> Iterator[Rim]:
    """Two weeks of five customers, sent and cleaned, on each engine."""
    folder = tmp_path_factory.mktemp("finished")
    url = f"sqlite:///{folder / 'ledger.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_server").create_database()
    sandbox = as_new(shared_sandbox)
    with pytest.MonkeyPatch.context() as patch, rim_at(folder, url, sandbox, patch, days=DAYS) as rim:
        for label in (HERE, THERE):
            assert failures(rim.materialise(label)) == {}
        yield rim
    if request.param == "postgresql":
        request.getfixturevalue("postgres_server").drop_database(url)


@pytest.fixture
def rim(finished: Rim) -> Iterator[Rim]:
    """The two finished weeks; what a test plants is gone afterwards."""
    with finished.as_it_was():
        yield finished


SEVERITY = {check.name: check.severity for check in CHECKS}


def command_exists(text: str) -> bool:
    """Whether ``digest ...`` is a command with these options, as somebody would type it."""
    words = shlex.split(text)
    assert words.pop(0) == "digest"
    found: click.Command = cli
    while isinstance(found, click.Group):
        found = found.commands[words.pop(0)]
    found.make_parser(click.Context(found)).parse_args(words)
    return True


def numbers(found: dg.AssetCheckEvaluation) -> dict[str, Any]:
    return {name: value.value for name, value in found.metadata.items()}


def test_every_check_has_a_planted_violation():
    assert {planted.check for planted in VIOLATIONS} == {check.name for check in CHECKS}


def test_a_clean_period_passes_every_check(rim):
    found = rim.check(HERE)
    assert set(found) == {check.name for check in CHECKS} | {LISTED}
    assert {name: one.description for name, one in found.items() if not one.passed} == {}


LOOKED_AT = {
    "manifest_is_frozen": "manifests 1, eligible 5",
    "manifest_accounts_for_everyone": "selected 5, eligible 5, excluded 0",
    "no_duplicate_sends": "sent 5, provider asked 0",
    "every_delivery_is_visible": "deliveries 5, pending 0, claimed 0, retry 0, unknown 0",
    "attempts_within_policy": "attempts 5, max attempts 3",
    "nothing_is_held": "waiting 0",
    "coverage_meets_objective": "coverage 1, objective 0.99, to be reached 5, reached in time 5",
    LISTED: "provider asked 5, provider confirmed 5",
    "no_unknown_past_retention": "unknown 0",
    "cleanup_only_after_definitive_send": "cleaned 5",
    "one_cleanup_per_key": "cleaned 5",
}


def test_a_check_that_passes_says_for_which_period_and_what_it_looked_at(rim):
    """MEM-01: a pass that looked at nothing must not look like one that looked at everybody."""
    found = rim.check(HERE)
    expected = {name: f"{HERE}: holds. Looked at: {what}." for name, what in LOOKED_AT.items()}
    assert {name: one.description for name, one in found.items()} == expected
    assert all("which" not in numbers(one) for one in found.values())


@pytest.mark.parametrize("planted", VIOLATIONS, ids=lambda planted: planted.id)
def test_a_planted_violation_fails_its_period_and_says_in_one_line_which_why_and_what_next(rim, planted):
    (manifest_id,) = rim.ids(HERE)
    planted.plant(rim, manifest_id)
    found = rim.check(HERE)[planted.check]
    assert not found.passed
    assert found.severity is SEVERITY[planted.check]
    told, shown = str(found.description), numbers(found)
    keys = [rim.key_of(n, HERE) for n in planted.named]
    assert shown["violations"] == (planted.count or len(planted.named) or 1)
    assert shown["keys"] == keys
    (line,) = told.splitlines()
    assert line.startswith(f"{HERE}: {shown['violations']} violation")
    assert planted.says in line
    assert [key for key in keys[:3] if key not in line] == []
    command = str(shown["next"])
    assert line.endswith(f" Next: {command}")
    assert command_exists(command)
    rows = shown["which"].records if keys else []
    assert [row.data["operation_key"] for row in rows] == keys
    assert [row.data["customer_id"] for row in rows] == [f"customer-{n:03d}" for n in planted.named]
    assert all(isinstance(row.data["attempts"], int) and row.data["state"] for row in rows)
    assert "@" not in f"{told} {shown}", "a check may name keys, never an address"


EVERYWHERE = [
    next(planted for planted in VIOLATIONS if planted.check == check.name)
    for check in CHECKS
    if check.everywhere
]


@pytest.mark.parametrize("planted", EVERYWHERE, ids=lambda planted: planted.id)
def test_a_violation_in_another_period_is_a_warning_with_its_count(rim, planted):
    """A newer pass must not hide an older failure."""
    (manifest_id,) = rim.ids(THERE)
    planted.plant(rim, manifest_id)
    found = rim.check(HERE)[planted.check]
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.WARN
    shown = numbers(found)
    assert (shown["violations"], shown["violations_in_other_periods"]) == (0, 1)
    told = str(found.description)
    assert told.startswith(f"{HERE}: holds for this period; 1 violation in other periods ({THERE}): ")
    assert told.endswith(f"Next: digest check --digest tiny_digest --period {THERE}")
    assert [row.data["operation_key"] for row in shown["which"].records] == [
        rim.key_of(n, THERE) for n in planted.named
    ]


def test_a_check_of_a_period_that_never_ran_is_an_error_not_a_pass(rim):
    """MEM-01."""
    assert rim.check("2025-W12") == {}
    done = rim.definitions.resolve_job_def("tiny_digest_checks").execute_in_process(
        instance=rim.instance, tags={"dagster/partition": "2025-W12-1"}, raise_on_error=False
    )
    assert not done.success
    assert len(failures(done)) == len(CHECKS) + 1


def test_a_check_started_from_its_own_page_is_about_the_newest_period(rim):
    """There, Dagster asks for no partition."""
    rim.sql("UPDATE manifest SET checksum = 'another' WHERE period = :there", there=THERE)
    done = rim.definitions.resolve_job_def(checks_job_name(rim.digest)).execute_in_process(
        instance=rim.instance, raise_on_error=False
    )
    found = {one.check_name: one for one in done.get_asset_check_evaluations()}
    assert set(found) == {check.name for check in CHECKS} | {LISTED}
    assert not found["manifest_is_frozen"].passed
    assert str(found["manifest_is_frozen"].description).startswith(f"{THERE}: 1 violation")


def test_a_coverage_that_may_still_be_reached_is_a_warning_until_nothing_is_coming(rim):
    rim.sql(
        "UPDATE delivery SET state = 'retry', due_at = 1, finished_at = NULL, cleaned_at = NULL, cleaned_by = NULL "
        "WHERE ordinal = 1 AND manifest_id = (SELECT id FROM manifest WHERE period = :here)",
        here=HERE,
    )
    coming = rim.check(HERE)["coverage_meets_objective"]
    assert (coming.passed, coming.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "1 too few; 1 wait and may still be" in str(coming.description)
    rim.sql("INSERT INTO pause (kind, name, since_at) VALUES ('gateway', 'sandbox', 1)")
    try:
        held = rim.check(HERE)
    finally:
        rim.sql("DELETE FROM pause")
    assert held["coverage_meets_objective"].severity is dg.AssetCheckSeverity.ERROR
    assert "held: paused 1" in str(held["coverage_meets_objective"].description)
    assert not held["nothing_is_held"].passed
    assert "Next: digest resume --gateway sandbox" in str(held["nothing_is_held"].description)


def test_a_retention_rule_may_remove_rows_without_a_send(rim):
    (manifest_id,) = rim.ids(HERE)
    rim.sql(
        "UPDATE delivery SET state = 'failed', proof = NULL, failure_class = 'recipient', cleaned_by = 'retention:failed' "
        "WHERE manifest_id = :m AND ordinal = 3",
        m=manifest_id,
    )
    found = rim.check(HERE)
    assert found["cleanup_only_after_definitive_send"].passed
    assert found["one_cleanup_per_key"].passed


def test_a_replayed_answer_is_no_duplicate(rim):
    (manifest_id,) = rim.ids(HERE)
    second_acceptance("message_id")(rim, manifest_id)
    assert rim.check(HERE)["no_duplicate_sends"].passed


def test_a_changed_manifest_stops_the_run_before_anything_is_sent(open_rim):
    rim = open_rim(delivery_window={"closes_after_hours": 72})
    rim.materialise()
    rim.sql("UPDATE manifest_entry SET recipient = 'mallory@evil.test' WHERE ordinal = 2")
    done = rim.materialise(allow_late=True, reason="now")
    assert not done.success
    assert rim.accepted() == {}
    started = {str(event.step_key) for event in done.all_events if event.is_step_start}
    assert not [step for step in started if "delivery" in step or "report" in step or "cleaned" in step]


def test_a_duplicate_send_stops_the_report_and_the_cleanup_of_the_same_run(open_rim):
    rim = open_rim(cleanup={"delay_hours": 1000})
    rim.materialise()
    (manifest_id,) = rim.ids()
    second_acceptance("'another-message'")(rim, manifest_id)
    before = rim.instance.get_materialized_partitions(dg.AssetKey(["tiny_digest", "reconciliation_report"]))
    assert before
    done = rim.materialise()
    assert not done.success
    started = {str(event.step_key) for event in done.all_events if event.is_step_start}
    assert "tiny_digest__cleaned_digest_rows" not in started
    assert "tiny_digest__reconciliation_report" not in started
    assert rim.states() == {"sent": 5}


def test_cleanup_that_was_not_earned_fails_the_run(open_rim):
    rim = open_rim()
    rim.materialise()
    rim.sql("UPDATE attempt SET outcome = 'not_sent' WHERE ordinal = 3")
    assert not rim.materialise().success


def planted_at_provider(rim: Rim, number: int) -> None:
    """Let the provider accept another message under a key, behind the ledger's back."""
    rim.sandbox.change(idempotency="none")
    gateway = registry.create("sandbox", {"url": rim.sandbox.url, "api_key": API_KEY, "idempotency": "none"})
    example = envelope(str(number))
    forged = Envelope(rim.key_of(number), f"reader-{number}@example.test", example.message)

    async def send() -> None:
        async with gateway:
            await gateway.send(forged)

    asyncio.run(send())


def test_a_duplicate_that_only_the_provider_knows_of_is_found_by_asking(open_rim):
    rim = open_rim()
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(2)]))
    rim.materialise()
    assert rim.check()["no_duplicate_sends"].passed
    planted_at_provider(rim, 2)
    assert rim.accepted()[rim.key_of(2)] == 2
    found = rim.check()["no_duplicate_sends"]
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.ERROR
    assert numbers(found)["keys"] == [rim.key_of(2)]
    assert "provider lists more than one" in str(found.description)


def test_a_provider_that_cannot_be_asked_does_not_pass_for_one_that_agreed(open_rim):
    rim = open_rim()
    rim.sandbox.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[rim.key_of(2)]))
    rim.materialise()
    rim.sandbox.change(look_up=False)
    found = rim.check()["no_duplicate_sends"]
    assert numbers(found)["provider_unanswered"] == 1
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.WARN, "nothing was found to be wrong: it must not block"
    assert "1 keys could not be asked about" in str(found.description)


def test_a_provider_that_lists_nothing_of_what_it_accepted_keeps_cleanup_from_going_on(
    tmp_path, ledger_url, sandbox, monkeypatch
):
    """LOST-11: accepted with ids, and then silently discarded."""
    sandbox.change(visibility_delay=10_000)
    with rim_at(tmp_path, ledger_url, sandbox, monkeypatch) as rim:
        rim.materialise(HERE)
        assert rim.states(HERE) == {"sent": 5}
        assert not rim.is_materialised("cleaned_digest_rows", HERE)
        found = rim.check(HERE)[LISTED]
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert numbers(found)["keys"] == [rim.key_of(n, HERE) for n in range(1, 6)]
        assert numbers(found)["next"] == f"digest trace {rim.key_of(1, HERE)}"

        sandbox.change(visibility_delay=0)  # it shows up after all: cleanup goes on, and nothing is sent
        assert failures(rim.materialise(HERE)) == {}
        assert rim.states(HERE) == {"cleaned": 5}
        assert rim.accepted() == {rim.key_of(n, HERE): 1 for n in range(1, 6)}


def test_a_single_message_that_the_provider_lost_is_a_warning_with_its_key(
    tmp_path, ledger_url, sandbox, monkeypatch
):
    with rim_at(tmp_path, ledger_url, sandbox, monkeypatch, customers=30) as rim:
        rim.materialise(HERE)
        with closing(sqlite3.connect(sandbox.store, timeout=30)) as store, store:
            store.execute("DELETE FROM arrival WHERE operation_key = ?", (rim.key_of(7, HERE),))
        found = rim.check(HERE)[LISTED]
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert numbers(found)["keys"] == [rim.key_of(7, HERE)]
        assert rim.states(HERE) == {"cleaned": 30}
