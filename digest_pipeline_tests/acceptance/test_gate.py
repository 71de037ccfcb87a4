"""`digest gate` as a team's CI uses it: the real pipeline, a sandbox in place of everything outside."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from sqlalchemy import create_engine, text

from digest_pipeline.defs.checks import CHECKS
from digest_pipeline.settings import PACKAGED_SPECS
from digest_pipeline_tests.harness.command import SECONDS, Said, Shell, free_port
from digest_pipeline_tests.harness.ledgers import LABEL, customer, write_customers
from digest_pipeline_tests.harness.rim import write_spec
from digest_pipeline_tests.harness.webhook import receiver

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy" / "ci"
NAMED = ("--digest", "tiny_digest", "--period", LABEL)
OWN = {
    "the_period_is_sent",
    "materialising_again_sends_nothing",
    "each_key_is_accepted_once",
    "ledger_and_provider_agree",
    "each_message_has_one_recipient",
}
BOUNCES = {"email": "nobody@bounce.example"}
"""The sandbox provider refuses it: one customer of twenty, which misses an objective of 99 %."""


def shell_in(folder: Path, customers: int, *, bounced: int = 0, **variables: str) -> Shell:
    """Return a folder with the tiny digest and its customers, the first of which have no mailbox."""
    (folder / "specs").mkdir()
    write_spec(folder / "specs")
    write_customers(
        folder, (customer(n, **(BOUNCES if n <= bounced else {})) for n in range(1, customers + 1))
    )
    named = {
        "DIGEST_HOME": str(folder / "home"),
        "DIGEST_SPECS": str(folder / "specs"),
        "DIGEST_SOURCE_URL": f"sqlite:///{folder / 'source.db'}",
    }
    return Shell(folder, named | variables)


def run(shell: Shell, command: str) -> Said:
    """Run a line as a CI system does, with the project's commands on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=shell.folder,
        env=shell.environment | {"PATH": path, "DAGSTER_DISABLE_TELEMETRY": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def cases(file: Path) -> dict[str, Any]:
    """Return the test cases of a JUnit file by name, having checked what every reader of one relies on."""
    root = ElementTree.parse(file).getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    found = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(found)
    for attribute, child in (("failures", "failure"), ("errors", "error")):
        assert int(suite.attrib[attribute]) == sum(case.find(child) is not None for case in found)
    assert float(suite.attrib["time"]) > 0
    assert all(case.attrib["classname"] and case.attrib["name"] for case in found)
    assert len({(case.attrib["classname"], case.attrib["name"]) for case in found}) == len(found)
    return {case.attrib["name"]: case for case in found}


@pytest.mark.slow
def test_a_digest_that_holds_passes_under_faults_and_touches_nothing_real(tmp_path, sandbox):
    """The specification names a real provider, the environment a real ledger: neither hears of it."""
    ledger = tmp_path / "production.db"
    shell = shell_in(
        tmp_path,
        20,
        DIGEST_LEDGER_URL=f"sqlite:///{ledger}",
        DIGEST_SANDBOX_URL=sandbox.url,
        DIGEST_SANDBOX_API_KEY="the-real-one",
        DIGEST_SENDING="off",
    )
    said = shell.run("gate", *NAMED, "--json", "--junit", "out/gate.xml")
    assert said.code == 0, said.err
    found = said.json
    assert (found["sent"], found["accepted"], found["sent_again"], found["failed"]) == (20, 20, 0, 0)
    assert sum(found["faults_hit"].values()) >= 6
    assert not ledger.exists()
    assert sandbox.control.statistics()["arrivals"] == 0
    assert not (tmp_path / "home").exists()
    junit = cases(tmp_path / "out" / "gate.xml")
    assert set(junit) >= OWN | {check.name for check in CHECKS} | {"provider_lists_what_it_accepted"}
    assert not any(list(case) for case in junit.values())


@pytest.mark.slow
def test_a_check_that_fails_without_blocking_fails_the_gate_and_says_what_to_do(tmp_path):
    shell = shell_in(tmp_path, 20, bounced=1)
    said = shell.run("gate", *NAMED, "--faults", "none", "--junit", "gate.xml", "--keep", "kept")
    assert said.code == 1
    failure = cases(tmp_path / "gate.xml")["coverage_meets_objective"].find("failure")
    assert failure is not None
    assert "Next: digest" in failure.text
    assert "@" not in (tmp_path / "gate.xml").read_text(encoding="utf-8")
    assert "coverage_meets_objective" in said.err
    assert "DIGEST_HOME=kept" in said.err
    assert list((tmp_path / "kept" / "reports").glob("*.html"))
    trace = shell.run("trace", f"tiny_digest:{LABEL}:customer-001", DIGEST_HOME=str(tmp_path / "kept"))
    assert trace.code == 0, trace.err


@pytest.mark.slow
def test_a_template_that_cannot_be_rendered_fails_the_gate(tmp_path):
    shell = shell_in(tmp_path, 3)
    template = next((tmp_path / "specs").rglob("body.txt.j2"))
    template.write_text("{{ items[0].price_in_euros|money }}\n", encoding="utf-8")
    said = shell.run("gate", *NAMED, "--json", "--junit", "gate.xml")
    assert said.code == 1
    finding = said.json["findings"][0]
    assert (finding["check"], finding["result"]) == ("the_period_is_sent", "failed")
    assert "price_in_euros" in finding["said"]
    assert cases(tmp_path / "gate.xml")["the_period_is_sent"].find("failure") is not None


@pytest.mark.slow
def test_a_period_without_customers_proves_nothing_and_fails(tmp_path):
    shell = shell_in(tmp_path, 3)
    said = shell.run("gate", "--digest", "tiny_digest", "--period", "2025-W20", "--json")
    assert said.code == 1
    (failed,) = (one for one in said.json["findings"] if one["result"] == "failed")
    assert failed["check"] == "the_period_is_sent"
    assert "nothing was proved" in failed["said"]


def test_what_cannot_be_tried_is_refused_with_exit_code_2_and_leaves_nothing(tmp_path):
    shell = shell_in(tmp_path, 1)
    (tmp_path / "bad.sql").write_text("CREATE TABEL x (y);", encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = set(shell.files())
    for arguments, said in (
        (("--digest", "nobody", "--period", LABEL), "tiny_digest"),
        (("--digest", "tiny_digest", "--period", "2025-W60"), "2025-W60"),
        ((*NAMED, "--source", "missing.sql"), "missing.sql"),
        ((*NAMED, "--source", "bad.sql"), "not SQL that SQLite takes"),
        ((*NAMED, "--keep", "full"), "is not empty"),
        ((*NAMED, "--junit", "full/file/gate.xml"), "--junit"),
    ):
        refused = shell.run("gate", *arguments)
        assert refused.code == 2, arguments
        assert said in refused.error
    assert set(shell.files()) == before


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("garbage", "not one SQLAlchemy can use"),
        ("ora://reader:secret@host/shop", "not one SQLAlchemy can use"),
        ("sqlite:///nowhere/shop.db", "could not be read"),
        ("postgresql://reader:secret@127.0.0.1:{refusing}/shop", "could not be read"),
    ],
)
def test_a_source_that_cannot_be_opened_is_the_callers_mistake(tmp_path, source, said):
    """Not the digest's: nothing was tried, so nothing is to be paused, and the folder can be named again."""
    shell = shell_in(tmp_path, 1)
    before = set(shell.files())
    url = source.replace("{refusing}", str(free_port()))
    refused = shell.run("gate", *NAMED, "--source", url, "--keep", "kept", "--junit", "gate.xml")
    assert refused.code == 2
    assert said in refused.error
    assert not re.search(r"secret|reader|pause", refused.error)
    assert set(shell.files()) == before
    assert not (tmp_path / "kept").exists()
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").symlink_to("empty")
    for kept in ("empty", "linked"):
        assert shell.run("gate", *NAMED, "--source", url, "--keep", kept).code == 2
        assert list((tmp_path / kept).iterdir()) == [], "it was there, and empty"


@pytest.mark.slow
def test_a_digest_that_tells_people_is_tried_out_without_them(tmp_path):
    """CI has none of these variables; where they are set, a trial is nothing to be told about."""
    with receiver() as hook:
        shell = shell_in(
            tmp_path, 3, bounced=1, TINY_WEBHOOK=hook.url, DIGEST_SOURCE_URL="sqlite:///{home}/shop.db"
        )
        notify = {"webhook": {"env": "TINY_WEBHOOK"}, "email": {"env": "TINY_ALERTS"}}
        write_spec(tmp_path / "specs", notify=notify)
        (tmp_path / "home").mkdir()
        (tmp_path / "source.db").rename(tmp_path / "home" / "shop.db")
        said = shell.run("gate", *NAMED, "--faults", "none", "--json")
    assert said.code == 1, "one of three has no mailbox"
    failed = {one["check"] for one in said.json["findings"] if one["result"] in ("failed", "error")}
    assert failed == {"coverage_meets_objective"}
    assert said.json["sent"] == 2, "{home} is the installation's folder, not the trial's"
    assert hook.bodies == []


@pytest.mark.slow
def test_digest_check_fails_on_any_check_and_dagsters_own_command_on_blocking_ones_only(tmp_path):
    """`dagster job execute` is what a team types that has only Dagster; both are in docs/ci_gate.md."""
    shell = shell_in(
        tmp_path,
        5,
        bounced=1,
        DIGEST_SANDBOX_URL=f"http://127.0.0.1:{free_port()}",
        DIGEST_SANDBOX_API_KEY="a-key-of-the-test",
    )
    assert shell.run("db", "upgrade").code == 0
    ran = shell.run("run", *NAMED, "--allow-late", "a test")
    assert ran.code == 1, "one of five has no mailbox"
    checked = shell.run("check", *NAMED, "--junit", "out/checks.xml")
    assert checked.code == 1
    found = cases(tmp_path / "out" / "checks.xml")
    assert found["coverage_meets_objective"].find("failure") is not None
    assert found["no_duplicate_sends"].find("failure") is None
    plain = (
        "dagster job execute -m digest_pipeline.definitions -j tiny_digest_checks "
        f"""--tags '{{"dagster/partition": "{LABEL}-1"}}'"""
    )
    assert run(shell, plain).code == 0, "coverage_meets_objective does not block"
    engine = create_engine(f"sqlite:///{tmp_path / 'home' / 'ledger.db'}")
    with engine.begin() as conn:
        conn.execute(text("UPDATE manifest_entry SET recipient = 'other@example.test' WHERE ordinal = 2"))
    engine.dispose()
    assert run(shell, plain).code == 1, "manifest_is_frozen blocks"


def commands_of(workflow: dict[str, Any]) -> list[str]:
    """Return what a sample workflow runs, whichever system it is for."""
    if "jobs" in workflow:
        steps = workflow["jobs"]["gate"]["steps"]
        return [step["run"].strip() for step in steps if "run" in step]
    job = workflow["digest gate"]
    return [command.strip() for command in (*job["before_script"], *job["script"])]


@pytest.mark.slow
def test_the_sample_workflows_work_as_they_are_written(tmp_path):
    github, gitlab = (
        yaml.safe_load((SAMPLES / name).read_text(encoding="utf-8"))
        for name in ("github-actions.yml", "gitlab-ci.yml")
    )
    commands = commands_of(github)
    assert commands == commands_of(gitlab)
    install, *rest = commands
    assert install.startswith("python -m pip install -r")
    shutil.copytree(SAMPLES, tmp_path / "ci")
    shutil.copytree(PACKAGED_SPECS, tmp_path / "specs")
    shell = Shell(tmp_path, github["jobs"]["gate"]["env"])
    assert shell.variables == gitlab["digest gate"]["variables"]
    for command in rest:
        done = run(shell, command)
        assert done.code == 0, done.out + done.err
    assert set(cases(tmp_path / gitlab["digest gate"]["artifacts"]["reports"]["junit"])) >= OWN
    upload = github["jobs"]["gate"]["steps"][-1]
    assert upload["if"] == "always()"
    for path in upload["with"]["path"].split():
        assert (tmp_path / path).exists()


def test_the_page_about_the_gate_shows_the_commands_of_the_samples():
    page = (ROOT / "docs" / "ci_gate.md").read_text(encoding="utf-8")
    samples = yaml.safe_load((SAMPLES / "github-actions.yml").read_text(encoding="utf-8"))
    for command in commands_of(samples)[1:]:
        assert all(line.strip() in page for line in command.splitlines()), command
