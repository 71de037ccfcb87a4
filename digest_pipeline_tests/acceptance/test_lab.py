"""`digest lab`: the guarantees can be tried by anybody, on this machine and on one's own gateway."""

from pathlib import Path

import pytest

from digest_pipeline_tests.harness.command import Shell

REPOSITORY = Path(__file__).parents[2]
PROVIDERS = "digest_pipeline_tests.harness.lying_provider"
ONE_CELL = ("--point", "after_claim_commit", "--fault", "kill", "--engine", "sqlite", "--jobs", "1")


@pytest.fixture
def shell(tmp_path) -> Shell:
    return Shell(tmp_path, {"PYTHONPATH": str(REPOSITORY)})


def test_crash_prints_a_table_and_what_was_skipped(shell):
    said = shell.run("lab", "crash", "--point", "during_look_up", "--fault", "kill", "--engine", "sqlite")
    assert said.code == 0, said.out
    assert "during look up" in said.out
    assert "skipped 1: a key that replays answers settles the doubt" in said.out
    assert "1 cells in" in said.out
    assert "duplicates 0, lost 0, stuck 0" in said.out


def test_crash_tells_programs_everything_about_each_cell(shell):
    said = shell.run("lab", "crash", *ONE_CELL, "--can", "neither", "--json")
    assert said.code == 0, said.out
    assert said.json["holds"] is True
    assert said.json["totals"]["cells_run"] == said.json["totals"]["cells_hit"] == 1
    (cell,) = said.json["cells"]
    assert cell["held"] == {"no_evidence": cell["unresolved"]}
    assert (cell["duplicates"], cell["lost"], cell["stuck"], cell["invisible"]) == (0, 0, 0, 0)
    assert {"sends", "attempts", "retry_delays", "cleanup_attempts", "runs", "seconds"} <= set(cell)


def test_a_team_tries_its_own_gateway(shell):
    said = shell.run("lab", "crash", *ONE_CELL, "--provider", f"{PROVIDERS}:OwnProvider", "--json")
    assert said.code == 0, said.out
    assert [cell["can"] for cell in said.json["cells"]] == ["replays"]
    assert {one["reason"] for one in said.json["skipped"]} == {"the provider under test cannot do this"}


def test_crash_fails_when_an_invariant_breaks_and_keeps_what_is_left(shell):
    said = shell.run(
        "lab", "crash", *ONE_CELL, "--provider", f"{PROVIDERS}:LyingProvider", "--keep", "broken", "--json"
    )
    assert said.code == 1
    assert said.json["holds"] is False
    assert said.json["totals"]["duplicates"] == 16
    kept = {Path(name).name for name in shell.files() if name.startswith("broken/")}
    assert {"ledger.db", "result.json", "nursery.log"} <= kept


def test_a_provider_that_does_not_exist_is_refused(shell):
    said = shell.run("lab", "crash", "--provider", "no.such.module:Provider")
    assert said.code == 2
    assert "package.module:Class" in said.error


@pytest.mark.slow
@pytest.mark.postgresql
def test_chaos_prints_its_seed_and_its_verdict(shell):
    said = shell.run("lab", "chaos", "--seconds", "4", "--workers", "2", "--seed", "5", "--json")
    assert said.code == 0, said.out
    assert "seed 5" in said.err
    assert said.json["holds"] is True
    assert said.json["seed"] == 5
    assert said.json["kills"] >= 1
    assert len(said.json["actions"]) >= 5
