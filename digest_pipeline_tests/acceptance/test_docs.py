"""The pages say what the code says: those drawn from it, and the commands and names in all of them."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import dagster as dg
import pytest

from digest_pipeline.cli.main import cli
from digest_pipeline.defs.checks import CHECKS
from digest_pipeline.ledger.schema import operator_action
from digest_pipeline.outcomes import FailureClass
from digest_pipeline.reconciliation.invariants import provider_lists_what_it_accepted
from digest_pipeline.spec import Retention
from digest_pipeline.states import HoldReason, State, SuppressionReason
from digest_pipeline_tests.pipeline.violations import too_many_attempts

ROOT = Path(__file__).parents[2]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = _generator().pages()


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_what_make_docs_would_write(page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == GENERATED[page], "run: make docs"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_every_relative_link_of_a_page_leads_somewhere(page: str) -> None:
    file = ROOT / page
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not (file.parent / link).exists()] == []


SHORT = {"D P": "--digest customer_digest --period 2026-W42", "NUMBER": "8"}
"""What the runbook abbreviates, and says so."""


def _mentioned(page: str) -> Iterator[tuple[str, bool]]:
    """Every command of a page, and whether it stands in a block to be typed as it is."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```\n(.*?)^```", text, re.M | re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if line.startswith(("digest ", "$ digest ")):
                yield line.removeprefix("$ ").partition("  #")[0].strip(), True
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for mention in re.findall(r"`(digest [^`]+)`", prose):
        yield mention, False


PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "runbook",
            "contract",
            "configuration",
            "ci_gate",
            "component",
            "deployment",
            "notifications",
        )
    ),
]
MENTIONED = [
    pytest.param(command, whole, id=f"{page}: {command}")
    for page in PAGES
    for command, whole in dict.fromkeys(_mentioned(page))
]


def _parse(command: str) -> None:
    """Parse a command as click does, down to its last sub-command, and execute nothing."""
    for short, long in SHORT.items():
        command = re.sub(rf"(?<!\S){short}(?!\S)", long, command)
    args = shlex.split(command)[1:]
    found: click.Command = cli
    context = cli.make_context("digest", args)
    while isinstance(found, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, inner, rest = found.resolve_command(context, rest)
        assert inner is not None
        context, found = inner.make_context(name, rest, parent=context), inner


@pytest.mark.parametrize(("command", "whole"), MENTIONED)
def test_every_command_that_a_page_mentions_exists_with_those_options(command: str, whole: bool) -> None:
    """In a block it is whole; in a sentence what it requires may be left out, but nothing is made up."""
    try:
        _parse(command)
    except click.MissingParameter:
        assert not whole, f"{command}: something required is missing"


@pytest.mark.parametrize(
    "wrong",
    ["digest nosuch", "digest replay --period 2026-W42 --key x", "digest db rebind --lost", "digest replay order D P"],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_noticed(wrong: str) -> None:
    with pytest.raises(click.UsageError) as noticed:
        _parse(wrong)
    assert not isinstance(noticed.value, click.MissingParameter)


def _in_backticks(page: str) -> str:
    return "\n".join(re.findall(r"`([^`\n]+)`", (ROOT / page).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "met",
    [
        *State,
        *HoldReason,
        *SuppressionReason,
        *FailureClass,
        *(check.name for check in CHECKS),
        provider_lists_what_it_accepted.__name__,
    ],
    ids=str,
)
def test_the_runbook_has_whatever_a_person_can_meet(met: str) -> None:
    assert re.search(rf"\b{met}\b", _in_backticks("docs/runbook.md"))


@pytest.mark.parametrize("field", Retention.model_fields)
def test_the_contract_tells_each_retention_with_its_default(field: str) -> None:
    days = Retention.model_fields[field].default
    text = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    assert f"`retention.{field}` ({days})" in text


@pytest.mark.parametrize("column", [column.name for column in operator_action.columns])
def test_the_contract_tells_each_field_of_the_audit_trail(column: str) -> None:
    assert re.search(rf"\b{column}\b", _in_backticks("docs/contract.md"))


# Dagster 1.13 still asks pydantic for the fields of a resource by their old name. Only Dagster's.
@pytest.mark.filterwarnings("ignore:The `__fields__` attribute:DeprecationWarning")
def test_the_code_that_evaluates_checks_sees_all_of_them_and_fails_on_a_violation(open_rim):
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "ci_gate.md").read_text(encoding="utf-8"), re.M | re.S
    )
    (partition,) = re.findall(r'"dagster/partition": "([^"]+)"', code)
    label = partition.removesuffix("-1")
    rim = open_rim(days=("1997-03-18",), first_period=label)
    assert rim.materialise(label).success
    given = {"dg": dg, "defs": rim.definitions, "instance": rim.instance}
    exec(code, given)
    evaluated = {(one.asset_key, one.check_name) for one in given["result"].get_asset_check_evaluations()}
    assert evaluated == {
        (key.asset_key, key.name) for key in rim.definitions.resolve_asset_graph().asset_check_keys
    }
    assert rim.accepted() == {rim.key_of(number, label): 1 for number in range(1, 6)}
    too_many_attempts(rim, *rim.ids(label))  # a violation that blocks nothing: Dagster's own exit code is 0
    with pytest.raises(AssertionError):
        exec(code, given)
