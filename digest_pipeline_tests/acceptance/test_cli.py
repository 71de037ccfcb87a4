"""What the command line promises, through real processes in a folder of their own."""

import email
import email.policy
import sqlite3
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from digest_pipeline.cli.main import cli
from digest_pipeline.demo.source import load_source
from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import DEMO_SPECS, PACKAGED_SPECS
from digest_pipeline.spec_loading import load_folder
from digest_pipeline_tests.harness.command import Said, Shell, free_port

WEEKS = ("1997-W01", "1997-W52", "1998-W01", "1998-W26")
"""The first and the last week of the data, and two on either side of a year's end."""

FROZEN, NOT_FROZEN = "1997-W30", "1997-W31"
NAMED = ("--digest", "customer_digest", "--period")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """The demo's customers, one in forty of them: every week is quick."""
    file = tmp_path_factory.mktemp("source") / "source.db"
    load_source(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as conn, conn:
        few = "CAST(substr(id, 7) AS INTEGER) % 40 = 0"
        conn.execute(f"DELETE FROM orders WHERE customer_id NOT IN (SELECT id FROM customers WHERE {few})")
        conn.execute(f"DELETE FROM customers WHERE NOT {few}")
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def ran(tmp_path_factory, source) -> tuple[Shell, dict[str, Said]]:
    """A folder in which the four weeks were run; with what each run said."""
    shell = Shell(
        tmp_path_factory.mktemp("work"),
        {"DIGEST_SOURCE_URL": source, "DIGEST_SANDBOX_URL": f"http://127.0.0.1:{free_port()}"},
    )
    assert shell.run("db", "upgrade").code == 0
    return shell, {label: shell.run("run", *NAMED, label, "--json") for label in WEEKS}


@pytest.fixture
def shell(ran: tuple[Shell, dict[str, Said]]) -> Shell:
    return ran[0]


def ledger_of(shell: Shell) -> Path:
    return shell.folder / ".digest" / "ledger.db"


def in_ledger(shell: Shell, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(ledger_of(shell))) as conn, conn:
        return conn.execute(statement).fetchall()


def content_of(shell: Shell) -> list[str]:
    with closing(sqlite3.connect(ledger_of(shell))) as conn:
        return list(conn.iterdump())


def addresses(source: str) -> list[str]:
    with closing(sqlite3.connect(source.removeprefix("sqlite:///"))) as conn:
        rows = conn.execute("SELECT email FROM customers WHERE email LIKE '%_@_%'").fetchall()
    return [address for (address,) in rows]


def every_command(group: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(group, click.Group):
        return [path]
    inner = [found for name, one in group.commands.items() for found in every_command(one, (*path, name))]
    return [path, *inner]


@pytest.mark.parametrize("path", every_command(cli), ids=" ".join)
def test_every_command_has_help(path):
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    assert command.help


def test_the_main_help_says_what_each_exit_code_means(tmp_path):
    said = Shell(tmp_path).run("--help")
    assert said.code == 0
    assert "Exit codes:" in said.out
    for code in ("0  done", "1  it failed", "2  what was asked for cannot be done: nothing was written"):
        assert code in said.out


def test_upgrading_twice_is_as_good_as_once(tmp_path):
    shell = Shell(tmp_path)
    first, second = shell.run("db", "upgrade", "--json"), shell.run("db", "upgrade", "--json")
    assert (first.code, second.code) == (0, 0)
    assert first.json == second.json
    assert first.json["schema"]


@pytest.mark.parametrize("label", WEEKS)
def test_a_week_is_frozen_sent_reported_and_checked_by_one_command(ran, label):
    shell, runs = ran
    said = runs[label]
    assert said.code == 0, said.err
    found = said.json
    assert (found["digest"], found["period"], found["errors"], found["checks_failed"]) == (
        "customer_digest",
        label,
        [],
        0,
    )
    assert found["sent_now"] == found["states"]["cleaned"] > 0
    assert found["eligible"] == found["states"]["cleaned"] + found["states"]["suppressed"]
    assert (found["duplicates"], found["coverage"]) == (0, 1.0)
    for kind in ("csv", "html"):
        assert (shell.folder / ".digest" / "reports" / f"customer_digest-{label}.{kind}").exists()


def test_weeks_on_either_side_of_a_years_end_share_no_key(shell):
    """PER-01."""
    keys = [str(key) for (key,) in in_ledger(shell, "SELECT operation_key FROM manifest_entry")]
    assert len(keys) == len(set(keys))
    assert {key.split(":")[1] for key in keys} >= {"1997-W52", "1998-W01"}


def test_running_a_week_again_sends_nothing(shell):
    said = shell.run("run", *NAMED, WEEKS[0], "--json")
    assert said.code == 0
    assert said.json["sent_now"] == 0


def test_status_of_a_period_has_exactly_the_promised_fields(shell):
    said = shell.run("status", *NAMED, WEEKS[1], "--json")
    assert said.code == 0
    assert said.err == ""
    promised = {
        "digest",
        "period",
        "manifest",
        "states",
        "attempts",
        "duplicates",
        "coverage",
        "oldest_pending_seconds",
        "unknown",
        "cleanup_lag_seconds",
    }
    assert set(said.json) == promised | {"held", "suppressed", "failed", "paused"}
    assert said.json["manifest"]["state"] == "sealed"
    assert said.json["manifest"]["entries"] == sum(said.json["states"].values())


def test_status_without_a_period_lists_every_frozen_one(shell):
    listed = shell.run("status", "--digest", "customer_digest", "--json")
    assert [one["period"] for one in listed.json if one["period"] in WEEKS] == list(WEEKS)
    shown = shell.run("status", "--digest", "customer_digest")
    assert all(label in shown.out for label in WEEKS)


def test_check_ends_with_0_where_everything_holds_and_1_where_something_does_not(shell):
    good = shell.run("check", *NAMED, WEEKS[1], "--json")
    assert good.code == 0, good.err
    assert (good.json["failed"], {one["result"] for one in good.json["checks"]}) == (0, {"passed"})
    key = in_ledger(
        shell,
        "SELECT e.manifest_id, e.ordinal, e.operation_key FROM manifest_entry e JOIN delivery d USING (manifest_id, ordinal) "
        "WHERE e.operation_key LIKE '%:1997-W52:%' AND d.state = 'cleaned' LIMIT 1",
    )[0]
    cleaned = f"UPDATE delivery SET state = '{{}}' WHERE manifest_id = {key[0]} AND ordinal = {key[1]}"
    in_ledger(shell, cleaned.format("sent"))
    try:
        bad = shell.run("check", *NAMED, WEEKS[1])
        elsewhere = shell.run("check", *NAMED, WEEKS[0], "--json")
    finally:
        in_ledger(shell, cleaned.format("cleaned"))
    assert bad.code == 1
    assert "one_cleanup_per_key" in bad.out.replace("\n", "")
    assert elsewhere.code == 0, "a violation in another period warns"
    assert "one_cleanup_per_key" in {
        one["check"] for one in elsewhere.json["checks"] if one["result"] == "warn"
    }


def test_check_of_a_period_that_never_ran_ends_with_2(shell):
    said = shell.run("check", *NAMED, "1997-W40")
    assert said.code == 2
    assert "was never run" in said.error


def test_trace_tells_every_attempt_of_a_key_and_no_address(shell, source):
    (key,) = in_ledger(
        shell,
        "SELECT e.operation_key FROM manifest_entry e JOIN delivery d USING (manifest_id, ordinal) "
        "WHERE d.state = 'cleaned' LIMIT 1",
    )[0]
    said = shell.run("trace", str(key), "--json")
    assert said.code == 0
    assert said.json["delivery"]["state"] == "cleaned"
    assert said.json["attempts"][-1]["outcome"] == "accepted"
    shown = shell.run("trace", str(key))
    assert shown.code == 0
    text = (said.out + said.err + shown.out + shown.err).lower()
    assert [one for one in addresses(source) if one.lower() in text] == []


def test_an_unknown_key_is_refused(shell):
    said = shell.run("trace", "customer_digest:1997-W01:nobody")
    assert said.code == 2
    assert "no delivery has the operation key" in said.error


def somebody(shell: Shell, label: str, state: str) -> str:
    (found,) = in_ledger(
        shell,
        "SELECT e.customer_id FROM manifest_entry e JOIN delivery d USING (manifest_id, ordinal) "
        f"JOIN manifest m ON m.id = e.manifest_id WHERE m.period = '{label}' AND d.state = '{state}' LIMIT 1",
    )[0]
    return str(found)


def test_preview_of_a_cleaned_week_renders_the_bytes_that_were_sent(shell, tmp_path):
    customer = somebody(shell, WEEKS[2], "cleaned")
    said = shell.run("preview", *NAMED, WEEKS[2], "--customer", customer, "--out", str(tmp_path), "--json")
    assert said.code == 0, said.err
    assert (said.json["frozen"], said.json["state"]) == (True, "cleaned")
    eml, html = (Path(name) for name in said.json["files"])
    assert (eml.suffix, html.suffix) == (".eml", ".html")
    message = email.message_from_bytes(eml.read_bytes(), policy=email.policy.default)
    assert message["Subject"] == said.json["subject"]
    assert message["To"].count("@") == 1
    assert "<html" in html.read_text(encoding="utf-8").lower()


def test_preview_of_a_frozen_week_and_of_one_not_frozen_yet_write_nothing_to_the_ledger(
    shell, source, tmp_path
):
    digest = load_folder(DEMO_SPECS)["customer_digest"]
    with Ledger(f"sqlite:///{ledger_of(shell)}") as ledger, Source(source) as customers:
        period = digest.period(FROZEN)
        frozen = freeze(ledger, customers, digest, period, "test")
        compose(ledger, customers, digest, period, frozen.manifest_ids, "test")
    customer = somebody(shell, FROZEN, "pending")
    before = content_of(shell)
    said = shell.run("preview", *NAMED, FROZEN, "--customer", customer, "--json")
    assert said.code == 0, said.err
    assert (said.json["frozen"], said.json["state"]) == (True, "pending")
    assert said.json["text"]
    others = shell.run("preview", *NAMED, NOT_FROZEN, "--customer", customer, "--json")
    assert others.code == 0, others.err
    assert (others.json["frozen"], others.json["state"]) == (False, "not frozen")
    shown = shell.run("preview", *NAMED, FROZEN, "--customer", customer)
    assert said.json["subject"].split()[0] in shown.out
    assert content_of(shell) == before


def test_preview_of_somebody_the_period_does_not_select_is_refused(shell):
    said = shell.run("preview", *NAMED, WEEKS[0], "--customer", "cdnow-99999")
    assert said.code == 2
    assert "cdnow-99999" in said.error


def test_report_writes_both_files_and_prints_its_numbers(shell):
    said = shell.run("report", *NAMED, WEEKS[3], "--json")
    assert said.code == 0, said.err
    assert (said.json["balanced"], said.json["missing_at_provider"]) == (1, 0)
    assert said.json["provider_asked"] > 0
    lines = Path(said.json["csv"]).read_text(encoding="utf-8").splitlines()
    assert len(lines) >= said.json["eligible"]


@pytest.mark.parametrize(
    ("label", "fix"),
    [
        ("2021-W53", "2021 has the weeks 2021-W01 to 2021-W52"),
        ("2026-W00", "2026 has the weeks 2026-W01 to 2026-W53"),
        ("2026-w7", "did you mean 2026-W07?"),
        ("1998-W27", "its periods go from 1997-W01 to 1998-W26"),
        ("2999-W01", "its periods go from 1997-W01 to 1998-W26"),
    ],
)
def test_a_wrong_period_is_refused_with_the_fix_and_nothing_is_written(shell, label, fix):
    before, ledger = set(shell.files()), content_of(shell)
    said = shell.run("run", *NAMED, label)
    assert said.code == 2
    assert fix in said.error
    assert (set(shell.files()), content_of(shell)) == (before, ledger)


@pytest.mark.parametrize("command", ["status", "check", "report"])
def test_every_command_refuses_a_wrong_period_alike(shell, command):
    said = shell.run(command, *NAMED, "2021-W53")
    assert said.code == 2
    assert "2021 has the weeks" in said.error


def test_a_week_that_has_not_ended_is_refused(tmp_path, source):
    """PER-07."""
    specs = tmp_path / "specs"
    specs.mkdir()
    (specs / "open.yaml").write_text(
        f"extends: {DEMO_SPECS / 'customer_digest.yaml'}\nlast_period: 2999-W01\n", encoding="utf-8"
    )
    shell = Shell(tmp_path, {"DIGEST_SOURCE_URL": source, "DIGEST_SPECS": str(specs)})
    assert shell.run("db", "upgrade").code == 0
    said = shell.run("run", *NAMED, "2998-W10")
    assert said.code == 2
    assert "has not ended" in said.error
    assert "the latest one that has is" in said.error


def test_an_unknown_digest_is_refused_naming_those_there_are(shell):
    said = shell.run("run", "--digest", "customer_digests", "--period", WEEKS[0])
    assert said.code == 2
    assert "there are: customer_digest" in said.error


@pytest.mark.parametrize("command", ["status", "run"])
def test_a_ledger_that_was_never_migrated_says_how_to_make_it(tmp_path, command):
    said = Shell(tmp_path).run(command, *NAMED, WEEKS[0])
    assert said.code == 1
    assert "digest db upgrade" in said.error


@pytest.mark.parametrize("arguments", [("db", "upgrade"), ("run", *NAMED, WEEKS[0])], ids=["upgrade", "run"])
def test_a_server_that_does_not_answer_is_one_line_and_no_password(tmp_path, arguments):
    """SEC-01."""
    url = f"postgresql://digest:s3cret@127.0.0.1:{free_port()}/digests"
    said = Shell(tmp_path, {"DIGEST_LEDGER_URL": url}).run(*arguments)
    assert said.code == 1
    assert "is the server up" in said.error
    assert "s3cret" not in said.err


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("cadence: hourly\n", "cadence"),
        ("rates: {}\n", "did you mean 'rate'"),
        ("a: [\n", "not valid YAML"),
        ("delivery_window: {opens_after_hours: 80}\n", "the window must open before it closes"),
    ],
)
def test_a_wrong_specification_is_refused_naming_file_and_field(tmp_path, text, fix):
    (tmp_path / "one.yaml").write_text(
        f"extends: {DEMO_SPECS / 'customer_digest.yaml'}\n{text}", encoding="utf-8"
    )
    said = Shell(tmp_path, {"DIGEST_SPECS": str(tmp_path)}).run("run", *NAMED, WEEKS[0])
    assert said.code == 2
    assert "one.yaml" in said.error
    assert fix in said.error


def test_a_url_that_is_none_is_refused_without_quoting_it(tmp_path):
    said = Shell(tmp_path, {"DIGEST_LEDGER_URL": "postgresql://u:s3cret@h:port/d"}).run("db", "upgrade")
    assert said.code == 2
    assert "DIGEST_LEDGER_URL" in said.error
    assert "s3cret" not in said.err


def test_a_week_whose_window_has_closed_is_held_until_somebody_says_why_it_may_go(tmp_path, source):
    shell = Shell(
        tmp_path,
        {
            "DIGEST_SOURCE_URL": source,
            "DIGEST_SPECS": str(PACKAGED_SPECS),
            "DIGEST_SANDBOX_URL": f"http://127.0.0.1:{free_port()}",
        },
    )
    shell.run("db", "upgrade")
    held = shell.run("run", *NAMED, WEEKS[0], "--json")
    assert held.code == 1
    assert held.json["sent_now"] == 0
    assert held.json["held"]["window_closed"] > 0
    assert "--allow-late REASON" in held.err
    late = shell.run(
        "run", *NAMED, WEEKS[0], "--allow-late", "the first week of the demo", "--by", "ann", "--json"
    )
    assert late.code == 0, late.err
    assert late.json["sent_now"] == held.json["held"]["window_closed"]
    rows = in_ledger(shell, "SELECT kind, who, reason FROM operator_action")
    assert rows == [("late", "ann", "the first week of the demo")]


def test_a_ledger_of_another_environment_sends_nothing_until_it_is_bound_again(tmp_path, source):
    """DUP-26."""
    shell = Shell(
        tmp_path,
        {"DIGEST_SOURCE_URL": source, "DIGEST_SANDBOX_URL": f"http://127.0.0.1:{free_port()}"},
    )
    shell.run("db", "upgrade")
    refused = shell.run("run", *NAMED, WEEKS[0], "--json", DIGEST_ENVIRONMENT="staging")
    assert refused.code == 1
    assert "belongs to the environment 'local'" in " ".join(refused.json["errors"])
    assert refused.json["sent_now"] == 0
    assert shell.run("db", "rebind", "--moved", DIGEST_ENVIRONMENT="staging").code != 0, (
        "it asks, and nobody answered"
    )
    assert shell.run("db", "rebind", "--moved", "--yes", DIGEST_ENVIRONMENT="staging").code == 0
    assert shell.run("run", *NAMED, WEEKS[0], "--json", DIGEST_ENVIRONMENT="staging").code == 0
