"""The one-command demo: what it prints is the proof, so it must be exactly that."""

import json

import pytest

from digest_pipeline.lab.sandbox.faults import HARSH_FAULTS
from digest_pipeline_tests.harness.command import Said, Shell

PROMISED = {
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
