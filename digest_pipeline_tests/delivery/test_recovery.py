"""The recovery test: a period that went wrong in every way, put right through the command line alone."""

import csv
from pathlib import Path

import pytest

from digest_pipeline.addresses import address_hash
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline_tests.harness.command import Shell
from digest_pipeline_tests.harness.delivering import NEITHER, frozen_desk, key_of
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT, LABEL

NAMED = ("--digest", "tiny_digest", "--period", LABEL)
SENT, REFUSED, DEAD, TAKEN, LOST, OPTED_OUT, WAITING = (1, 2, 3), 4, (5, 6), 7, 8, 9, (10, 11)
EVERYBODY = range(1, 12)
WRONG = {
    **dict.fromkeys(SENT, "sent"),
    REFUSED: "failed",
    **dict.fromkeys(DEAD, "dead"),
    TAKEN: "unknown",
    LOST: "unknown",
    OPTED_OUT: "suppressed",
    **dict.fromkeys(WAITING, "pending"),
}
AMBIGUOUS = {key_of(n) for n in (TAKEN, LOST)}
SAFE = {key_of(n) for n in (REFUSED, *DEAD)}


def gone_wrong(desk):
    """Let a run meet everything that can go wrong, and end before the last two are due."""
    desk.sql("UPDATE delivery SET due_at = :far WHERE ordinal > 9", far=2**60)
    desk.sql(
        "INSERT INTO suppression (tenant, address_hash, reason, since_at) VALUES ('default', :h, 'opted_out', 1)",
        h=address_hash(f"reader-{OPTED_OUT}@example.test"),
    )
    desk.script(Fault.INVALID_RECIPIENT_422, REFUSED, attempts=99)
    desk.script(Fault.UNAVAILABLE_503, *DEAD, attempts=99)
    desk.script(Fault.RESET_AFTER_ACCEPT, TAKEN)
    desk.script(Fault.RESET_BEFORE_ACCEPT, LOST)
    desk.deliver()
    assert {row.ordinal: row.state for row in desk.rows()} == WRONG
    desk.sql("UPDATE delivery SET due_at = 1 WHERE ordinal > 9")
    desk.sandbox.control.clear_faults()


def listed(shell):
    """Return the state of every recipient, as the report's list has it."""
    report = shell.run("report", *NAMED, "--json").json
    with Path(report["csv"]).open(encoding="utf-8", newline="") as file:
        return {row["operation_key"]: row["state"] for row in csv.DictReader(file)}


def keys_in(said):
    return {one["operation_key"] for one in said.json}


@pytest.mark.slow
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_a_person_names_a_period_tells_complete_from_ambiguous_and_replays_exactly_the_safe_set(
    tmp_path, ledger_url, sandbox
):
    """DUP-28, with a provider that neither knows keys nor can be asked: its own store is the judge."""
    with frozen_desk(tmp_path, ledger_url, sandbox, len(EVERYBODY), NEITHER) as desk:
        gone_wrong(desk)
        shell = Shell(
            tmp_path,
            {
                "DIGEST_HOME": str(tmp_path / "home"),
                "DIGEST_LEDGER_URL": ledger_url,
                "DIGEST_SPECS": str(tmp_path),
                "DIGEST_ENVIRONMENT": ENVIRONMENT,
            },
        )
        assert listed(shell) == {key_of(n): state for n, state in WRONG.items()}
        assert keys_in(shell.run("unknowns", "list", *NAMED, "--json")) == AMBIGUOUS
        assert keys_in(shell.run("dead-letters", "list", *NAMED, "--out", "letters.txt", "--json")) == SAFE

        why = ("--reason", "the provider's outage is over", "--json")
        everybody = [part for n in EVERYBODY for part in ("--keys", key_of(n))]
        dry = shell.run("replay", *NAMED, *everybody, *why).json
        assert (set(dry["keys"]), dry["applied"]) == (SAFE, False)
        assert set(dry["refused_keys"]) == {key_of(n) for n in EVERYBODY} - SAFE
        assert desk.counts()["dead"] == len(DEAD)
        done = shell.run("replay", *NAMED, "--keys", "@letters.txt", "--apply", *why).json
        assert set(done["keys"]) == SAFE
        shell.run("run", *NAMED)
        assert set(sandbox.oracle().accepted_keys()) == {
            key_of(n) for n in EVERYBODY if n not in (LOST, OPTED_OUT)
        }
        assert {key for key, state in listed(shell).items() if state == "unknown"} == AMBIGUOUS

        # What no machine can know, a person finds in the provider's own list.
        for number in (TAKEN, LOST):
            verdict = "sent" if list(sandbox.oracle().acceptances(key_of(number))) else "not-sent"
            resolved = shell.run(
                "resolve", *NAMED, "--keys", key_of(number), "--as", verdict, "--apply", *why
            ).json
            assert resolved["keys"] == [key_of(number)]
        final = shell.run("run", *NAMED, "--json")
        assert (final.code, final.json["sent_now"], final.json["duplicates"]) == (0, 1, 0)
        assert set(listed(shell).values()) == {"cleaned", "suppressed"}
        assert desk.row(OPTED_OUT).state == "suppressed"
    reached = [n for n in EVERYBODY if n != OPTED_OUT]
    assert list(sandbox.oracle().accepted_keys()) == sorted(key_of(n) for n in reached)
    assert list(sandbox.oracle().duplicates()) == []
