"""``digest suppress``: who is left alone, as a person sees and changes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from digest_pipeline.cli.suppress import suppress
from digest_pipeline.errors import InputError
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline_tests.harness.command import SECONDS, Shell
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    dump,
    frozen_period,
    migrated,
    run_ledger_sql,
    tiny_source,
    tiny_spec,
)

WHY = ("--reason", "asked by phone", "--by", "jo")


@dataclass
class Desk:
    """A ledger and its command: in this process, since a new one takes seconds to start."""

    shell: Shell
    ledger: Ledger

    def run(self, *arguments: str, stdin: str = "") -> Any:
        """What the command prints as JSON. Raises what it refuses."""
        done = CliRunner().invoke(
            suppress, [*arguments, "--json"], input=stdin, env=self.shell.variables, catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("suppress")
    url = f"sqlite:///{folder / 'ledger.db'}"
    with migrated(url) as ledger, tiny_source(folder, customers=2) as source:
        frozen_period(ledger, tiny_spec(folder), PERIOD, source)
        yield Desk(Shell(folder, {"DIGEST_LEDGER_URL": url, "DIGEST_SPECS": str(folder)}), ledger)


@pytest.fixture
def desk(shared_desk: Desk) -> Desk:
    for table in ("suppression", "operator_action"):
        run_ledger_sql(shared_desk.ledger, f"DELETE FROM {table}")
    return shared_desk


def test_an_address_on_standard_input_is_suppressed_audited_and_never_shown(desk: Desk) -> None:
    """By the real command, as a process."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("digest")), "--log-level", "DEBUG", "suppress", "add", *WHY],
        cwd=desk.shell.folder,
        env=desk.shell.environment,
        input="Reader-1@EXAMPLE.test\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = desk.run("list")
    shown = (row["tenant"], row["reason"], row["expires"], row["source"])
    assert shown == ("default", "opted_out", None, "operator")
    (action,) = dump(desk.ledger, "operator_action")
    assert (action["kind"], action["who"], action["reason"]) == ("suppress", "jo", "asked by phone")
    for text in (done.stdout, done.stderr, str(row), str(action)):
        assert "example" not in text.lower()
    hashes = {entry["address_hash"] for entry in dump(desk.ledger, "manifest_entry") if entry["ordinal"] == 1}
    assert {entry["address_hash"] for entry in dump(desk.ledger, "suppression")} == hashes


def test_a_customer_is_suppressed_for_some_days_and_lifted(desk: Desk) -> None:
    """CLS-13: an operator can lift it."""
    customer = ("--customer", "customer-002")
    added = desk.run("add", *customer, "--as", "bounced", "--days", "3", *WHY)
    assert added == {"suppressed": "bounced", "changed": True}
    (row,) = desk.run("list")
    assert row["expires"] > row["since"]
    assert desk.run("lift", *customer, *WHY) == {"lifted": True}
    assert desk.run("list") == []
    assert desk.run("lift", *customer, *WHY) == {"lifted": False}
    assert [row["kind"] for row in dump(desk.ledger, "operator_action")] == ["suppress", "lift suppression"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("--customer", "nobody"), "", "nobody"),
        ((), "not an address\n", "that is no address"),
        ((), "\n", "--customer"),
        (("--customer", "customer-001", "--tenant", "acme"), "", "no tenant 'acme'"),
    ],
)
def test_what_cannot_be_suppressed_is_refused_and_not_repeated(
    desk: Desk, arguments: tuple[str, ...], stdin: str, said: str
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        desk.run("add", *arguments, *WHY, stdin=stdin)
    assert "not an address" not in str(refused.value)
    assert dump(desk.ledger, "suppression") == dump(desk.ledger, "operator_action") == []


def test_with_several_tenants_one_must_be_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with migrated(url) as ledger, tiny_source(tmp_path, customers=2) as source:
        frozen_period(ledger, tiny_spec(tmp_path, tenants={"mode": "column"}), PERIOD, source)
        desk = Desk(Shell(tmp_path, {"DIGEST_LEDGER_URL": url, "DIGEST_SPECS": str(tmp_path)}), ledger)
        with pytest.raises(InputError, match="acme"):
            desk.run("add", "--customer", "customer-001", *WHY)
        said = desk.run("add", "--customer", "customer-001", "--tenant", "acme", *WHY)
        assert said["changed"] is True
