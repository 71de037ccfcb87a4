"""What checks and assertions found, as rows for people and as JUnit XML for CI systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import click

from digest_pipeline.errors import InputError

if TYPE_CHECKING:
    from digest_pipeline.defs.run import RunOutcome

# What XML 1.0 cannot hold, not even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

junit_option = click.option(
    "--junit",
    "junit",
    metavar="FILE",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write JUnit XML there: one test case for each check.",
)


class Result(StrEnum):
    """How a check or an assertion ended. ``ERROR``: it could not be evaluated."""

    PASSED = "passed"
    WARN = "warn"
    FAILED = "failed"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One of them: ``suite`` is the asset or ``gate``. ``said`` holds keys and counts, nothing private."""

    suite: str
    name: str
    result: Result
    said: str

    def fails(self, *, strict: bool = False) -> bool:
        """Whether it fails a gate: a warning does only where the gate is strict."""
        return self.result in (Result.FAILED, Result.ERROR) or (strict and self.result is Result.WARN)

    @property
    def row(self) -> dict[str, str]:
        """The finding as a table shows it."""
        return {"of": self.suite, "check": self.name, "result": str(self.result), "said": self.said}


def findings_of(outcome: RunOutcome) -> list[Finding]:
    """Return what a run's asset checks found, and what kept one of them from being evaluated."""
    found = []
    for check in outcome.checks:
        failed = Result.FAILED if check.is_failure else Result.WARN
        result = Result.PASSED if check.passed else failed
        found.append(Finding(check.asset, check.name, result, check.description))
    for error in outcome.errors:
        step, _, said = error.partition(": ")
        found.append(Finding("run", step, Result.ERROR, said))
    if not outcome.succeeded and not any(one.fails() for one in found):
        found.append(Finding("run", outcome.run_id, Result.ERROR, "the run failed without saying why"))
    return found


def require_writable(file: Path | None) -> None:
    """Raise InputError unless a report can be written there. Writes nothing yet."""
    if file is None:
        return
    place = next(folder for folder in file.absolute().parents if folder.exists())
    if file.exists() and not os.access(file, os.W_OK):
        raise InputError(f"--junit: {file} is there already and may not be written to")
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise InputError(f"--junit: {file} cannot be written: {place} is no folder that we may write to")


def write_junit(
    file: Path, suite: str, findings: Sequence[Finding], seconds: float, *, strict: bool = False
) -> None:
    """Write one test suite. A warning is a passed case whose text says it, unless ``strict``."""
    root = Element("testsuites")
    element = SubElement(
        root,
        "testsuite",
        name=suite,
        tests=str(len(findings)),
        failures=str(_count(findings, strict, errors=False)),
        errors=str(_count(findings, strict, errors=True)),
        skipped="0",
        time=f"{seconds:.3f}",
    )
    for one in findings:
        case = SubElement(element, "testcase", classname=_text(one.suite), name=_text(one.name), time="0")
        if one.fails(strict=strict):
            kind = "error" if one.result is Result.ERROR else "failure"
            SubElement(case, kind, message=_text(one.said), type=str(one.result)).text = _text(one.said)
        elif one.result is Result.WARN:
            SubElement(case, "system-out").text = _text(f"warning: {one.said}")
    indent(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def _count(findings: Iterable[Finding], strict: bool, *, errors: bool) -> int:
    return sum(one.fails(strict=strict) and (one.result is Result.ERROR) is errors for one in findings)


def _text(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
