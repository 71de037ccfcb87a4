"""No address and no name leaves the ledger: everything a run leaves behind is searched for each of them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline_tests.harness.command import Said, Shell
from digest_pipeline_tests.harness.ledgers import LABEL, customer, run_sql, write_customers
from digest_pipeline_tests.harness.rim import Rim, failures, rim_at, write_spec
from digest_pipeline_tests.harness.sandbox import API_KEY, running_sandbox

CUSTOMERS = 110
NAMED = ("--digest", "tiny_digest", "--period", LABEL)
ODD: tuple[dict[str, Any], ...] = (
    {"name": "Zephyrine Ärgerlich", "email": "zephyrine.ärgerlich@umlaut.test"},
    {"name": "Quixotic\r\nBcc: hidden@evil.test", "email": "quixotic.fellow@private.test"},
    {"name": "Wilhelmina, Von", "email": "Wilhelmina.Von@UPPER.test"},
    {"name": "Xylophonist", "email": "xylophonist..twice@private.test"},
    {"name": "Yggdrasil", "email": "yggdrasil@@private.test"},
    {"name": "Optedout Persephone", "email": "optedout.persephone@private.test", "opted_in": 0},
    {"name": "Empty Thaddeus", "email": "empty.thaddeus@private.test", "hidden": 1},
    {"name": "Shared Mnemosyne", "email": "Confidential-001@private.test"},
)


def people() -> list[dict[str, Any]]:
    ordinary = [
        customer(
            n,
            name=f"Clandestine{n:03d} Person",
            email=f"confidential-{n:03d}@private.test",
            item=f"secret-item-{n:03d}",
        )
        for n in range(1, CUSTOMERS + 1)
    ]
    odd = [customer(CUSTOMERS + n, item=f"secret-item-odd-{n}", **one) for n, one in enumerate(ODD, 1)]
    return ordinary + odd


def secrets() -> list[str]:
    """Return every address, name and line of content, in the form that any leak would have."""
    found = [API_KEY, "evil.test", "private.test", "umlaut.test", "upper.test", "Clandestine", "secret-item"]
    for one in people():
        found += [str(one["email"]), *str(one["name"]).split("\r\n")]
    return found


def leaks(text: str) -> list[str]:
    lowered = text.lower()
    return [
        secret
        for secret in secrets()
        if secret.lower() in lowered or json.dumps(secret)[1:-1].lower() in lowered
    ]


def everything_in(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes().decode("utf-8", "replace")


@pytest.fixture(scope="module")
def harsh(tmp_path_factory) -> tuple[Shell, list[Said]]:
    """A week sent through every fault, by the command at its most talkative; with all that it said."""
    folder = tmp_path_factory.mktemp("private")
    (folder / "specs").mkdir()
    write_spec(
        folder / "specs", source={"env": "DIGEST_SOURCE_URL", "default": ...}, sending={"timeout_seconds": 2}
    )
    write_customers(folder, people())
    with running_sandbox(folder, profile="harsh", seed=3) as sandbox:
        shell = Shell(
            folder,
            {
                "DIGEST_SPECS": str(folder / "specs"),
                "DIGEST_SOURCE_URL": f"sqlite:///{folder / 'source.db'}",
                "DIGEST_SANDBOX_URL": sandbox.url,
                "DIGEST_SANDBOX_API_KEY": API_KEY,
            },
        )
        said = [shell.run("db", "upgrade")]
        said += [shell.run("--log-level", "DEBUG", "run", *NAMED) for _ in range(3)]
        said.append(shell.run("--log-level", "DEBUG", "check", *NAMED))
        said.append(shell.run("--log-level", "DEBUG", "report", *NAMED))
        said.append(shell.run("--log-level", "DEBUG", "status", *NAMED))
        said.append(shell.run("trace", "tiny_digest:2025-W10:customer-003"))
        assert len(sandbox.oracle().faults_hit()) > 10
        assert list(sandbox.oracle().duplicates()) == []
    return shell, said


def test_the_harsh_week_was_really_sent(harsh):
    _, said = harsh
    assert said[0].code == 0
    assert said[-1].code == 0
    assert "attempt_ended" in said[1].err + said[2].err, "at DEBUG there is a line for each attempt"


def test_nothing_the_command_says_holds_an_address_a_name_or_content(harsh):
    _, said = harsh
    assert [leaks(one.out + one.err) for one in said if leaks(one.out + one.err)] == []


def test_the_reports_hold_no_address_no_name_and_no_content(harsh):
    shell, _ = harsh
    reports = dict(everything_in(shell.folder / ".digest" / "reports"))
    assert {Path(name).suffix for name in reports} == {".csv", ".html"}
    assert {name: leaks(text) for name, text in reports.items() if leaks(text)} == {}


def test_dagsters_own_storage_and_logs_hold_no_address_no_name_and_no_content(harsh):
    """Events, metadata, run configuration, tags and compute logs: every file of the instance."""
    shell, _ = harsh
    files = dict(everything_in(shell.folder / ".digest" / "dagster"))
    assert any(name.endswith(".db") for name in files)
    assert {name: leaks(text) for name, text in files.items() if leaks(text)} == {}


def test_the_search_finds_what_is_there(harsh):
    shell, _ = harsh
    with closing(sqlite3.connect(shell.folder / ".digest" / "ledger.db")) as conn:
        text = "\n".join(conn.iterdump())
    assert "confidential-001@private.test" in leaks(text)


def all_that_dagster_stored(rim: Rim) -> str:
    told = []
    for run in rim.instance.get_runs():
        told += [dg.serialize_value(run), *(dg.serialize_value(e) for e in rim.instance.all_logs(run.run_id))]
    return "\n".join(told)


@pytest.fixture
def private_rim(tmp_path, ledger_url, sandbox, monkeypatch) -> Iterator[Rim]:
    with rim_at(tmp_path, ledger_url, sandbox, monkeypatch, customers=0) as rim:
        write_customers(tmp_path, people()[:5])
        yield rim


def test_a_template_that_fails_on_somebodys_rows_tells_nothing_of_them(private_rim):
    rim = private_rim
    template = rim.folder / "specs" / "template" / "body.txt.j2"
    template.write_text(
        "{% for one in items %}{{ one.item / 2 }}{{ customer.name.nothing() }}{% endfor %}", encoding="utf-8"
    )
    done = rim.materialise()
    assert "tiny_digest__digest_rows" in failures(done)
    assert leaks(all_that_dagster_stored(rim)) == []


def test_a_ledger_that_refuses_a_row_tells_nothing_of_it(private_rim):
    """PostgreSQL quotes the whole failing row in its error's detail."""
    rim = private_rim
    if rim.ledger.is_postgresql:
        rim.sql("ALTER TABLE manifest_entry ADD CONSTRAINT planted CHECK (ordinal <> 3)")
    else:
        rim.sql(
            "CREATE TRIGGER planted BEFORE INSERT ON manifest_entry WHEN new.ordinal = 3 "
            "BEGIN SELECT raise(ABORT, 'planted'); END"
        )
    done = rim.materialise()
    assert "tiny_digest__eligible_customers" in failures(done)
    assert leaks(all_that_dagster_stored(rim)) == []


def test_a_source_that_fails_half_way_tells_nothing_of_its_rows(private_rim):
    rim = private_rim
    run_sql(rim.folder, "ALTER TABLE customers RENAME COLUMN opted_in TO agreed")
    done = rim.materialise()
    assert "tiny_digest__eligible_customers" in failures(done)
    assert leaks(all_that_dagster_stored(rim)) == []


def test_an_address_that_the_ledger_lost_tells_nothing(private_rim):
    rim = private_rim
    rim.materialise()
    rim.sql("UPDATE manifest_entry SET recipient = 'other.confidential@private.test' WHERE ordinal = 2")
    done = rim.materialise()
    assert not done.success
    assert leaks(all_that_dagster_stored(rim)) == []


def test_what_held_failed_and_planted_deliveries_show_tells_nothing_private(private_rim):
    """Summaries, tables of keys, first lines of checks: all of them name keys and customer ids only."""
    rim = private_rim
    rim.sandbox.control.script(Rule(Fault.INVALID_RECIPIENT_422, keys=[rim.key_of(2)]))
    rim.materialise()
    rim.sql("UPDATE delivery SET state = 'pending', proof = NULL, finished_at = NULL, cleaned_at = NULL, "
            "cleaned_by = NULL, due_at = NULL WHERE ordinal = 3")  # fmt: skip
    rim.close_windows()
    done = rim.materialise()
    failed = {one.check_name for one in done.get_asset_check_evaluations() if not one.passed}
    assert failed >= {"every_delivery_is_visible", "nothing_is_held"}
    told = all_that_dagster_stored(rim)
    assert rim.key_of(3) in told
    assert leaks(told) == []
