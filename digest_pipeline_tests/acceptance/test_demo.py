"""The one-command demo: what it prints is the proof, so it must be exactly that."""

import json

import pytest

from digest_pipeline.demo.judge import judge
from digest_pipeline.lab.sandbox.faults import HARSH_FAULTS, Fault
from digest_pipeline.lab.smtp.script import HARSH
from digest_pipeline_tests.harness.command import Said, Shell
from digest_pipeline_tests.harness.delivering import NEITHER, key_of
from digest_pipeline_tests.harness.ledgers import PERIOD

PROMISED = {
    "gateway",
    "digest",
    "period",
    "eligible",
    "states",
    "duplicates",
    "lost",
    "checks_failed",
    "report",
    "seconds",
    "sent_now",
}


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> tuple[Shell, Said, Said]:
    """A folder in which the default week was sent twice."""
    shell = Shell(tmp_path_factory.mktemp("demo"))
    return shell, shell.run("demo", "--json"), shell.run("demo", "--json")


@pytest.mark.slow
def test_the_demo_prints_one_json_object_with_the_promised_fields(played):
    _, first, _ = played
    assert first.code == 0, first.err
    assert len(first.out.splitlines()) == 1
    assert set(json.loads(first.out)) == PROMISED


@pytest.mark.slow
def test_the_demo_sends_the_default_week_to_everybody_once(played):
    shell, first, _ = played
    found = first.json
    assert (found["digest"], found["period"]) == ("customer_digest", "1997-W12")
    assert found["eligible"] == sum(found["states"].values())
    assert found["sent_now"] == found["states"]["cleaned"] > 1000
    assert found["states"]["cleaned"] + found["states"]["suppressed"] == found["eligible"]
    assert (found["duplicates"], found["lost"], found["checks_failed"]) == (0, 0, 0)
    page = shell.folder / found["report"]
    assert page.exists()
    assert page.with_suffix(".csv").exists()


@pytest.mark.slow
def test_a_second_demo_sends_nothing_new(played):
    _, first, second = played
    assert second.code == 0, second.err
    assert second.json["sent_now"] == 0
    assert second.json["states"] == first.json["states"]
    assert (second.json["duplicates"], second.json["lost"], second.json["checks_failed"]) == (0, 0, 0)


@pytest.mark.slow
def test_a_harsh_demo_meets_every_fault_and_still_reaches_everybody_once(tmp_path):
    shell = Shell(tmp_path)
    said = shell.run("demo", "--faults", "harsh", "--period", "1997-W03", "--json")
    assert said.code == 0, said.err + said.out
    found = said.json
    assert set(found) == PROMISED | {"faults", "faults_not_hit", "runs"}
    assert found["faults_not_hit"] == []
    assert set(found["faults"]) == {str(fault) for fault in HARSH_FAULTS}
    assert (found["duplicates"], found["lost"]) == (0, 0)
    assert found["runs"] > 1, "the account is refused at first: another run goes on"
    settled = {"cleaned", "sent", "suppressed", "failed", "dead"}
    assert sum(count for state, count in found["states"].items() if state in settled) == found["eligible"]


@pytest.mark.slow
def test_a_week_goes_out_through_a_real_smtp_server_once_however_often_it_is_started(tmp_path):
    shell = Shell(tmp_path)
    first, second = (
        shell.run("demo", "--gateway", "smtp", "--period", "1997-W01", "--json") for _ in range(2)
    )
    assert (first.code, second.code) == (0, 0), first.err + second.err
    found, again = first.json, second.json
    assert (found["gateway"], found["sent_now"], again["sent_now"]) == (
        "smtp",
        found["states"]["cleaned"],
        0,
    )
    assert found["sent_now"] > 500
    assert (found["duplicates"], found["lost"], found["checks_failed"]) == (0, 0, 0)
    assert again["states"] == found["states"]
    assert set(found) == PROMISED


@pytest.mark.slow
def test_a_harsh_smtp_server_leads_to_no_second_mail_and_what_nobody_knows_is_listed(tmp_path):
    """An SMTP server cannot be asked, so an accepted message whose reply was lost stays unknown, and visible."""
    shell = Shell(tmp_path)
    said = shell.run("demo", "--gateway", "smtp", "--faults", "harsh", "--period", "1997-W01", "--json")
    assert said.code == 0, said.err + said.out
    found = said.json
    assert found["faults_not_hit"] == []
    assert set(found["faults"]) == {order.name for order in HARSH}
    assert (found["duplicates"], found["lost"]) == (0, 0)
    assert found["runs"] > 1, "the login is refused at first: another run goes on"
    settled = {"cleaned", "sent", "suppressed", "failed", "dead", "unknown"}
    assert sum(count for state, count in found["states"].items() if state in settled) == found["eligible"]
    lost_replies = sum(found["faults"][name] for name in ("dot:drop+", "dot:silence+", "dot:999+"))
    assert found["states"]["unknown"] == lost_replies + found["faults"]["dot:drop"]
    home = str(tmp_path / ".digest" / "smtp" / "harsh")
    of_week = ("--digest", "customer_digest", "--period", "1997-W01")
    listed = shell.run("unknowns", "list", *of_week, "--json", DIGEST_HOME=home).json
    assert len(listed) == found["states"]["unknown"]
    assert {(one["gateway"], one["hold_reason"]) for one in listed} == {("smtp", "no_evidence")}


def judged(desk):
    return judge(desk.sandbox.oracle(), desk.ledger, desk.digest, PERIOD)


def test_the_judge_calls_an_unknown_visible_and_tells_how_many_of_them_arrived(open_desk):
    desk = open_desk(4, can=NEITHER)
    desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    desk.script(Fault.RESET_BEFORE_ACCEPT, 2)
    desk.deliver()
    found = judged(desk)
    assert (found.unknown, found.in_doubt, found.unrecorded) == (2, 1, 1)
    assert (found.duplicates, found.lost, found.agrees) == (0, 0, True)


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("UPDATE delivery SET state = 'pending', finished_at = NULL, proof = NULL WHERE ordinal = 1", "unrecorded"),
        ("UPDATE delivery SET state = 'sent', finished_at = 1, proof = 'accepted', due_at = NULL WHERE ordinal = 4", "lost"),
    ],
    ids=["accepted-and-not-sent", "sent-and-not-accepted"],
)  # fmt: skip
def test_the_judge_finds_what_only_one_side_knows(open_desk, statement, wrong):
    desk = open_desk(4)
    desk.script(Fault.INVALID_RECIPIENT_422, 4, attempts=9)
    desk.deliver()
    assert judged(desk).agrees
    assert key_of(4) not in set(desk.sandbox.oracle().accepted_keys())
    desk.sql(statement)
    found = judged(desk)
    assert getattr(found, wrong) == 1
    assert not found.agrees


@pytest.mark.parametrize(
    ("label", "fix"),
    [("1998-W27", "its periods go from 1997-W01 to 1998-W26"), ("2021-W53", "2021 has the weeks")],
)
def test_a_week_outside_the_data_is_refused_and_nothing_is_written(tmp_path, label, fix):
    shell = Shell(tmp_path)
    said = shell.run("demo", "--period", label)
    assert said.code == 2
    assert fix in said.error
    assert shell.files() == {}
