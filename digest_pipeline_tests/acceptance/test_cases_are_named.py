"""Every case of docs/cases.md is held by tests that name it, or a decision says what stands in for it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
CASE = r"(?:DUP|LOST|PER|CLS|INP|CON|MEM|SEC|CLN|OBS)-\d{2}"
ROW = re.compile(rf"\| (?P<case>{CASE})(?P<decided>\*?) \| (?P<wrong>.+) \| (?P<owed>.+) \| (?P<tests>.+) \|")


def _rows() -> dict[str, re.Match[str]]:
    lines = (DOCS / "cases.md").read_text(encoding="utf-8").splitlines()
    found = [match for line in lines if (match := ROW.fullmatch(line))]
    assert len(found) == sum(line.startswith("| ") for line in lines) - lines.count(
        "| case | what went wrong | what is owed | tests |"
    ), "a row of the table cannot be read"
    return {match["case"]: match for match in found}


def _named() -> dict[str, set[str]]:
    """Return the cases that each test names in its docstring: ``folder/test_file.py::test_name`` -> cases."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                cases = set(re.findall(rf"\b{CASE}\b", ast.get_docstring(node) or ""))
                found[f"{path.relative_to(TESTS)}::{node.name}"] = cases
    return found


def _decided() -> set[str]:
    pages = (DOCS / "decisions").glob("*.md")
    return {case for page in pages for case in re.findall(rf"^\| ({CASE}) \|", page.read_text("utf-8"), re.M)}


CASES, NAMED, DECIDED = _rows(), _named(), _decided()


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_tests_that_name_it_or_a_decision(case):
    listed = re.findall(r"`([^`]+)`", CASES[case]["tests"])
    assert [test for test in listed if case not in NAMED.get(test, set())] == []
    assert listed or case in DECIDED


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_marked_exactly_where_a_decision_is_about_it(case):
    assert bool(CASES[case]["decided"]) == (case in DECIDED)


def test_every_case_that_a_test_names_is_in_the_table():
    named = {case: test for test, cases in NAMED.items() for case in cases}
    assert {case: test for case, test in named.items() if case not in CASES} == {}


def test_every_case_that_a_decision_is_about_is_in_the_table():
    assert DECIDED - set(CASES) == set()
