"""Removing any one guard makes a test fail: each is taken out of a copy of the project, and its tests run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from digest_pipeline_tests.guards.mutations import MUTATIONS, Mutation

PROJECT = Path(__file__).parents[2]
SECONDS = 300


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the package and its tests, which a mutation may change."""
    folder: Path = tmp_path_factory.mktemp("mutated")
    for name in ("digest_pipeline", "digest_pipeline_tests"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(PROJECT / "pyproject.toml", folder)
    return folder


def run(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy, each on SQLite; -rf names those that failed."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-rfE", "--no-header", "--tb=line"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not postgresql"]
    return subprocess.run(
        command + [f"digest_pipeline_tests/{test}" for test in tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def apply(copy: Path, mutation: Mutation) -> dict[Path, str]:
    """Take the guard out; return the files as they were."""
    before: dict[Path, str] = {}
    for edit in mutation.edits:
        path = copy / "digest_pipeline" / edit.file
        text = path.read_text(encoding="utf-8")
        assert text.count(edit.old) == edit.times, f"{edit.file} has changed: say anew where this guard is"
        before.setdefault(path, text)
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    return before


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard.replace(" ", "_"))
def test_without_this_guard_its_tests_fail(copy: Path, mutation: Mutation) -> None:
    before = apply(copy, mutation)
    try:
        done = run(copy, mutation.tests)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
    # 1: tests were collected, ran, and some failed. Anything else is a mistake in the mutation.
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-2000:]
    failed = set(re.findall(r"^FAILED digest_pipeline_tests/(\S+?)(?:\[| |$)", done.stdout, re.MULTILINE))
    assert {test.partition("[")[0] for test in mutation.tests} <= failed, done.stdout[-3000:]


def test_with_every_guard_in_place_the_same_tests_pass(copy: Path) -> None:
    every = tuple(dict.fromkeys(test for mutation in MUTATIONS for test in mutation.tests))
    done = run(copy, every)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
