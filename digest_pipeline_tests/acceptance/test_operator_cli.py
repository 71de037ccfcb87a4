"""What a person may do with the command line: real processes, beside a real ledger and provider."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from digest_pipeline.cli.main import cli, main
from digest_pipeline.errors import InputError
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.operations import key_files
from digest_pipeline.operations.key_files import Selection
from digest_pipeline_tests.harness.command import Said, Shell
from digest_pipeline_tests.harness.delivering import NEITHER, Desk, assert_once_each, frozen_desk, key_of
from digest_pipeline_tests.harness.ledgers import (
    ENVIRONMENT,
    LABEL,
    PERIOD,
    customer,
    dump,
    frozen_period,
    migrated,
    plant,
    states,
    tiny_source,
    tiny_spec,
    write_customers,
)
from digest_pipeline_tests.harness.sandbox import as_new, running_sandbox

REFUSED, TAKEN = Fault.INVALID_RECIPIENT_422, Fault.RESET_AFTER_ACCEPT
NAMED = ("--digest", "tiny_digest", "--period", LABEL)
WHY = ("--reason", "the addresses are mended")
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def provider(tmp_path_factory) -> Iterator[SandboxProcess]:
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as process:
        yield process


@pytest.fixture
def open_desk(tmp_path, ledger_url, provider) -> Iterator[Callable[..., Desk]]:
    with ExitStack() as stack:

        def opened(customers: int, **changes: Any) -> Desk:
            return stack.enter_context(
                frozen_desk(tmp_path, ledger_url, as_new(provider), customers, **changes)
            )

        yield opened


@pytest.fixture
def shell(tmp_path, ledger_url) -> Shell:
    """The command as a process of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    home = {"DIGEST_HOME": str(folder / ".digest")}
    return Shell(
        folder,
        {
            **home,
            "DIGEST_LEDGER_URL": ledger_url,
            "DIGEST_SPECS": str(tmp_path),
            "DIGEST_ENVIRONMENT": ENVIRONMENT,
        },
    )


@dataclass
class Inside(Shell):
    """The same command inside this process, where a test is not about processes: seconds cheaper."""

    def run(self, *arguments: str, **changed: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["digest", *arguments])
            for name, value in (self.variables | {"COLUMNS": "80", "NO_COLOR": "1"} | changed).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        code = ended.value.code
        assert isinstance(code, int)
        return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture
def inside(shell) -> Inside:
    return Inside(shell.folder, shell.variables)


def actions(desk: Desk) -> list[dict[str, Any]]:
    return dump(desk.ledger, "operator_action")


def listed(shell: Shell, *selection: str, group: str = "dead-letters") -> tuple[Path, Said]:
    file = shell.folder / "keys.txt"
    return file, shell.run(group, "list", *NAMED, *selection, "--out", str(file), "--json")


def test_the_widest_replay_finds_the_dead_letters_and_sends_each_of_them_once(open_desk, shell):
    """DUP-28: fifty were sent, ten were not."""
    desk = open_desk(60)
    desk.script(REFUSED, *range(51, 61))
    desk.deliver()
    file, said = listed(shell)
    assert len(said.json) == 10
    dry = shell.run("replay", *NAMED, "--keys", f"@{file}", *WHY, "--json").json
    assert (dry["would_change"], dry["refused"], dry["applied"]) == (10, 0, False)
    assert (dry["digest"], dry["period"]) == ("tiny_digest", LABEL)
    assert (desk.counts(), actions(desk)) == ({"sent": 50, "failed": 10}, [])
    done = shell.run("replay", *NAMED, "--keys", f"@{file}", *WHY, "--by", "ann", "--apply")
    assert done.code == 0, done.err
    assert f"digest run --digest tiny_digest --period {LABEL}" in done.err
    again = shell.run("replay", *NAMED, "--keys", f"@{file}", *WHY, "--apply", "--json")
    assert (again.code, again.json["refused_because"]) == (1, {"it is being replayed already": 10})
    everybody = [part for n in (*range(1, 51), 60) for part in ("--keys", key_of(n))]
    wide = shell.run("replay", *NAMED, *everybody, *WHY, "--apply", "--json").json
    assert wide["refused_because"] == {
        "an attempt was accepted: a replay could be a second mail": 50,
        "it is being replayed already": 1,
    }
    ran = shell.run("run", *NAMED, "--json")
    assert ran.json["sent_now"] == 10
    assert_once_each(desk, range(1, 61))
    (action,) = [one for one in actions(desk) if one["kind"] == "replay"]
    assert (action["who"], len(json.loads(action["keys"]))) == ("ann", 10)


@pytest.mark.parametrize("option", ["--digest", "--period", "--keys", "--reason"])
def test_a_replay_asks_for_each_thing_that_bounds_it(option):
    """SEC-14."""
    given = {"--digest": "tiny_digest", "--period": LABEL, "--keys": "k", "--reason": "why"}
    arguments = [part for name, value in given.items() if name != option for part in (name, value)]
    said = CliRunner().invoke(cli, ["replay", *arguments])
    assert said.exit_code == 2
    assert f"Missing option '{option}'" in said.output


def damaged(file: Path, how: str) -> str:
    """Damage a key file; return what must be said of it."""
    header, *keys = file.read_text().splitlines()
    changed, says = {
        "cut off": ([header, *keys[:-1]], "says 3 keys and has 2"),
        "a key added": ([header, *keys, key_of(4)], "says 3 keys and has 4"),
        "a key changed": ([header, *keys[:-1], key_of(4)], "its checksum is another"),
        "of another week": ([header.replace(LABEL, "2025-W09"), *keys], "lists dead letters of tiny_digest 2025-W09"),
        "of another digest": ([header.replace("tiny_digest", "other"), *keys], "lists dead letters of other"),
        "of unknowns": ([header.replace("dead letters", "unknowns"), *keys], "lists unknowns of tiny_digest"),
        "without its header": (keys, "has no header"),
        "empty": ([], "has no header"),
        "a list of addresses": (["reader-1@example.test", "leserín@example.test"], "has no header"),
    }[how]  # fmt: skip
    file.write_text("".join(f"{line}\n" for line in changed), encoding="utf-8")
    return says


@pytest.mark.parametrize(
    "how",
    [
        "cut off",
        "a key added",
        "a key changed",
        "of another week",
        "of another digest",
        "of unknowns",
        "without its header",
        "empty",
        "a list of addresses",
    ],
)
def test_a_key_file_that_is_not_as_it_was_written_is_refused_by_name(tmp_path, how):
    file = tmp_path / "keys.txt"
    selection = Selection("tiny_digest", LABEL, key_files.DEAD_LETTERS, "recipient")
    key_files.write(file, selection, [key_of(n) for n in (1, 2, 3)])
    assert len(key_files.read(file, "tiny_digest", LABEL, key_files.DEAD_LETTERS)[1]) == 3
    says = damaged(file, how)
    with pytest.raises(InputError, match=re.escape(says)) as refused:
        key_files.read(file, "tiny_digest", LABEL, key_files.DEAD_LETTERS)
    assert str(file) in str(refused.value)
    write_one = "digest dead-letters list --digest tiny_digest --period 2025-W10 --out FILE"
    assert write_one in str(refused.value)
    assert "@example.test" not in str(refused.value)


@on_sqlite
def test_a_key_file_that_was_cut_off_changes_nothing(open_desk, inside):
    desk = open_desk(4)
    desk.script(REFUSED, 1, 2, 3)
    desk.deliver()
    file, _ = listed(inside)
    says = damaged(file, "cut off")
    said = inside.run("replay", *NAMED, "--keys", f"@{file}", *WHY, "--apply")
    assert said.code == 2
    assert says in said.error
    assert (desk.counts(), actions(desk)) == ({"sent": 1, "failed": 3}, [])


@on_sqlite
def test_a_key_file_says_what_was_selected_and_how_many(open_desk, inside):
    desk = open_desk(4)
    desk.script(REFUSED, 1, 2)
    desk.deliver()
    file, said = listed(inside, "--class", "recipient", "--limit", "1")
    assert "1 keys written to" in said.err
    header, *keys = file.read_text().splitlines()
    assert header.startswith("# tiny_digest 2025-W10: 1 keys, dead letters, class recipient, sha256 ")
    assert keys == [key_of(1)]
    assert listed(inside, "--class", "recipients")[1].code == 2
    file.unlink()
    none, said = listed(inside, "--class", "content")
    assert (said.code, none.exists()) == (2, False)
    assert "no dead letters match" in said.error


def test_unknowns_are_resolved_from_the_file_that_lists_them(open_desk, inside):
    desk = open_desk(3, can=NEITHER)
    desk.script(TAKEN, 1, 3)
    desk.deliver()
    file, _ = listed(inside, group="unknowns")
    told = ("resolve", *NAMED, "--keys", f"@{file}", "--as", "sent", "--reason", "ticket 4711", "--json")
    assert inside.run(*told).json["would_change"] == 2
    assert desk.counts() == {"sent": 1, "unknown": 2}
    assert inside.run(*told, "--apply").json["changed"] == 2
    assert desk.counts() == {"sent": 3}
    replayed = inside.run("replay", *NAMED, "--keys", f"@{file}", *WHY)
    assert replayed.code == 2
    assert "lists unknowns" in replayed.error


@pytest.mark.parametrize("by", ["the environment", "the specification"])
def test_with_sending_disabled_a_replay_shows_its_effect_and_sends_0(open_desk, shell, tmp_path, by):
    desk = open_desk(3)
    desk.script(REFUSED, 2)
    desk.deliver()
    off = {"DIGEST_SENDING": "off"} if by == "the environment" else {}
    spec = tmp_path / "tiny_digest.yaml"
    enabled = spec.read_text()
    if by == "the specification":
        spec.write_text(enabled.replace("sending:\n", "sending:\n  enabled: false\n"))
    said = shell.run("replay", *NAMED, "--keys", key_of(2), *WHY, "--apply", **off)
    assert said.code == 0, said.err
    assert "sending is disabled (sending.enabled, or DIGEST_SENDING=off): 0 are sent" in said.err
    held = shell.run("run", *NAMED, "--json", **off).json
    assert (held["sent_now"], held["held"]) == (0, {"sending_disabled": 1})
    assert desk.row(2).state == "retry"
    spec.write_text(enabled)
    assert shell.run("run", *NAMED, "--json").json["sent_now"] == 1
    assert_once_each(desk, range(1, 4))


def begin(shell: Shell, *arguments: str) -> subprocess.Popen[str]:
    command = str(Path(sys.executable).with_name("digest"))
    return subprocess.Popen(
        [command, *arguments],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_two_commands_that_replay_one_letter_at_once_one_does_it(open_desk, shell):
    """DUP-29: two processes, let go together by whoever held the row."""
    desk = open_desk(3)
    desk.script(REFUSED, 2)
    desk.deliver()
    arguments = ("replay", *NAMED, "--keys", key_of(2), *WHY, "--apply", "--json")
    with desk.ledger.write() as conn:
        conn.execute(text("UPDATE delivery SET attempts = attempts WHERE ordinal = 2"))
        both = [begin(shell, *arguments) for _ in range(2)]
        if desk.ledger.is_postgresql:
            wait_for_two_that_wait(desk)
    said = [(one.communicate(timeout=120), one.returncode) for one in both]
    decisions = [json.loads(out) for (out, _), _ in said]
    assert sorted((one["changed"], code) for one, (_, code) in zip(decisions, said, strict=True)) == [
        (0, 1),
        (1, 0),
    ]
    (loser,) = [one for one in decisions if not one["changed"]]
    assert loser["refused_keys"] == {key_of(2): "it is being replayed already"}
    assert len(actions(desk)) == 1
    desk.deliver(run_id="run-2")
    assert_once_each(desk, range(1, 4))


def wait_for_two_that_wait(desk: Desk) -> None:
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with desk.ledger.read() as conn:
            if conn.execute(query).scalar_one() == 2:
                return
        time.sleep(0.01)
    raise AssertionError("the two replays do not wait for the row")


@on_sqlite
def test_above_the_configured_count_somebody_else_approves(open_desk, inside):
    """SEC-14."""
    desk = open_desk(3, replay={"approve_above": 1})
    desk.script(REFUSED, 1, 2)
    desk.deliver()
    file, _ = listed(inside)
    told = ("replay", *NAMED, "--keys", f"@{file}", *WHY, "--by", "ann")
    assert "it waits until somebody else approves it" in inside.run(*told).err
    asked = inside.run(*told, "--apply", "--json").json
    assert (asked["applied"], desk.counts()["failed"]) == (False, 2)
    (waiting,) = inside.run("replay", "waiting", "--json").json
    assert (waiting["number"], waiting["by"], waiting["keys"]) == (asked["waits_for_approval"], "ann", 2)
    approve = ("replay", "approve", str(asked["waits_for_approval"]))
    herself = inside.run(*approve, "--by", "ann", "--apply")
    assert herself.code == 2
    assert "somebody else has to approve it" in herself.error
    dry = inside.run(*approve, "--by", "bob", "--json").json
    assert (dry["would_change"], dry["by"], dry["reason"]) == (2, "ann", WHY[1])
    assert desk.counts()["failed"] == 2
    assert inside.run(*approve, "--by", "bob", "--apply", "--json").json["changed"] == 2
    assert desk.counts() == {"sent": 1, "retry": 2}
    assert inside.run(*approve, "--by", "bob", "--apply").code == 2
    assert inside.run("replay", "waiting", "--json").json == []


@on_sqlite
def test_more_keys_than_an_order_may_name_are_refused_before_anything_is_written(open_desk, inside):
    """SEC-14."""
    desk = open_desk(1)
    file = inside.folder / "many.txt"
    key_files.write(
        file, Selection("tiny_digest", LABEL, key_files.DEAD_LETTERS), [key_of(n) for n in range(1, 1_002)]
    )
    said = inside.run("replay", *NAMED, "--keys", f"@{file}", *WHY, "--apply")
    assert said.code == 2
    assert "1001 keys are more than the 1000 that one order may name" in said.error
    assert "--limit 1000" in said.error
    empty = inside.run("replay", *NAMED, "--keys", " ", *WHY, "--apply")
    assert (empty.code, "no keys were given" in empty.error) == (2, True)
    nobody = inside.run("replay", *NAMED, "--keys", key_of(1), *WHY, "--by", "", "--apply")
    assert (nobody.code, "--by" in nobody.error) == (2, True)
    assert actions(desk) == []


@on_sqlite
def test_where_tenants_are_named_an_order_is_about_one_of_them(tmp_path, ledger_url, inside):
    """SEC-14."""
    digest = tiny_spec(tmp_path, tenants={"mode": "column"})
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, 2, tenant="acme") as source:
        write_customers(tmp_path, [customer(3, tenant="globex", id="customer-001")])
        acme, globex = frozen_period(ledger, digest, PERIOD, source)
        for manifest, ordinal in ((acme, 1), (acme, 2), (globex, 1)):
            plant(ledger, manifest, ordinal, "failed")
        theirs = "tiny_digest:2025-W10:acme/customer-001", "tiny_digest:2025-W10:globex/customer-001"
        keys = [part for key in theirs for part in ("--keys", key)]
        said = inside.run("replay", *NAMED, *keys, *WHY, "--apply")
        assert said.code == 2
        assert "tiny_digest has several tenants" in said.error
        unnamed = listed(inside)[1]
        assert unnamed.code == 2
        assert "--tenant; 2025-W10 has: acme, globex" in unnamed.error
        assert "there are: acme, globex" in inside.run("pause", *NAMED[:2], "--tenant", "acem", *WHY).error
        assert "--tenant" in inside.run("erase", "--customer", "customer-001", *WHY, "--apply").error
        one = inside.run("replay", *NAMED, *keys, "--tenant", "acme", *WHY, "--apply", "--json").json
        assert (one["keys"], one["refused_keys"]) == (
            [theirs[0]],
            {theirs[1]: "a delivery of another tenant"},
        )
        file, _ = listed(inside, "--tenant", "acme")
        assert ", tenant acme, sha256 " in file.read_text()
        other = inside.run("replay", *NAMED, "--keys", f"@{file}", "--tenant", "globex", *WHY)
        assert "about another tenant" in other.error
        rest = inside.run("replay", *NAMED, "--keys", f"@{file}", *WHY, "--apply", "--json").json
        assert (rest["tenant"], rest["changed"]) == ("acme", 1)
        assert (states(ledger, acme), states(ledger, globex)) == ({1: "retry", 2: "retry"}, {1: "failed"})
        assert [one["tenant"] for one in dump(ledger, "operator_action")] == ["acme", "acme"]
        erased = inside.run(
            "erase", "--customer", "customer-001", "--tenant", "globex", *WHY, "--apply", "--json"
        )
        assert erased.json["entries"] == 1


def test_a_period_is_closed_once_its_window_is_over_and_not_before(open_desk, inside):
    desk = open_desk(3)
    close = ("close", *NAMED, "--reason", "too late to be worth it", "--by", "ann")
    early = inside.run(*close, "--apply")
    assert early.code == 2
    assert "may be sent until" in early.error
    desk.close_window()
    dry = inside.run(*close, "--json").json
    assert (dry["would_end"], dry["applied"], desk.counts()) == (3, False, {"pending": 3})
    assert inside.run(*close, "--apply", "--json").json["ended"] == 3
    assert desk.counts() == {"dead": 3}
    assert (
        inside.run("dead-letters", "list", *NAMED, "--class", "window", "--json").json[0]["state"] == "dead"
    )
    (action,) = actions(desk)
    assert (action["kind"], action["who"], action["period"]) == ("close", "ann", LABEL)
    late = inside.run("replay", *NAMED, "--keys", key_of(1), *WHY)
    assert "has closed: what is replayed is sent late" in late.err


DRY_RUNS = {("replay",), ("replay", "approve"), ("resolve",), ("close",), ("erase",)}
AT_ONCE = {("pause",), ("resume",)}


@pytest.mark.parametrize("path", sorted(DRY_RUNS | AT_ONCE), ids=" ".join)
def test_whatever_a_person_decides_is_a_dry_run_but_for_stopping(path):
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    options = {param.name for param in command.params}
    assert {"by", "reason"} <= options
    assert ("apply" in options) is (path in DRY_RUNS)
    if path in AT_ONCE:
        assert "without --apply" in (command.help or "")


@on_sqlite
def test_who_decides_is_the_os_user_unless_somebody_says_otherwise(open_desk, shell):
    desk = open_desk(1)
    assert shell.run("pause", *NAMED[:2], *WHY, USER="carol", LOGNAME="carol").code == 0
    assert shell.run("resume", *NAMED[:2], *WHY, "--by", "dan").code == 0
    assert [one["who"] for one in actions(desk)] == ["carol", "dan"]
    assert os.environ.get("LOGNAME") != "carol"
