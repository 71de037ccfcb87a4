"""Playing the demo: one real week through Dagster to the sandbox provider, judged by its store."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from digest_pipeline.defs.run import RunOutcome, run_checks, run_period, use_instance
from digest_pipeline.demo.judge import Judgement, judge
from digest_pipeline.demo.source import SourceSummary, load_source
from digest_pipeline.lab.sandbox.faults import HARSH_FAULTS
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.ledger import migrate, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.reads import Summary
from digest_pipeline.periods import Period
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest

DIGEST = "customer_digest"
MOST_RUNS = 6
"""Runs until a harsh week is settled: a halted one needs another after the account works again."""


@dataclass(frozen=True, slots=True)
class Played:
    """What the demo showed."""

    digest: str
    period: str
    summary: Summary
    judgement: Judgement
    sent_now: int
    runs: int
    checks: RunOutcome
    faults: dict[str, int]
    missed_faults: tuple[str, ...]
    report: Path
    seconds: float

    @property
    def checks_failed(self) -> int:
        """How many asset checks fail the gate."""
        return sum(check.is_failure for check in self.checks.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the demo's result as plain values."""
        found: dict[str, Any] = {
            "digest": self.digest,
            "period": self.period,
            "eligible": self.summary.entries,
            "states": self.summary.states,
            "duplicates": self.judgement.duplicates,
            "lost": self.judgement.lost,
            "checks_failed": self.checks_failed,
            "report": str(self.report),
            "seconds": round(self.seconds, 1),
            "sent_now": self.sent_now,
        }
        if self.faults:
            found |= {"faults": self.faults, "faults_not_hit": list(self.missed_faults), "runs": self.runs}
        return found


def demo_home(settings: Settings, *, harsh: bool) -> Path:
    """Return the demo's folder. A harsh demo starts from nothing: a week that is sent hits no faults."""
    if not harsh:
        return settings.home
    home = settings.home / "harsh"
    if home.exists():
        shutil.rmtree(home)
    return home


def prepare_source(settings: Settings) -> SourceSummary:
    """Make the demo's customer database, unless it is there."""
    settings.home.mkdir(parents=True, exist_ok=True)
    return load_source(f"sqlite:///{settings.home / 'source.db'}")


@contextmanager
def environment(home: Path) -> Iterator[Settings]:
    """Point this process at the demo's folder, whatever the environment said, and back."""
    from digest_pipeline.settings import DEMO_SPECS

    wanted = {
        "DIGEST_HOME": str(home),
        "DIGEST_LEDGER_URL": f"sqlite:///{home / 'ledger.db'}",
        "DIGEST_SOURCE_URL": f"sqlite:///{home / 'source.db'}",
        "DIGEST_SPECS": str(DEMO_SPECS),
        "DIGEST_REPORTS": str(home / "reports"),
        "DIGEST_REPORTS_URL": "",  # another folder is served there
        "DIGEST_EXECUTOR": "in_process",
    }
    with environment_of(wanted, "DIGEST_SANDBOX_URL"):
        yield Settings.from_environment()


@contextmanager
def environment_of(wanted: Mapping[str, str], *others: str) -> Iterator[None]:
    """Set variables of this process; at the end they, and ``others``, are what they were."""
    before = {name: os.environ.get(name) for name in (*wanted, *others)}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def play(
    home: Path,
    label: str,
    *,
    harsh: bool,
    seed: int,
    watch: Callable[[Ledger, Digest, Period], Any],
    say: Callable[[str], None],
) -> Played:
    """Send one week of the data set and return what came of it. Raises InputError for a wrong week.

    Run again for the same week and folder, it sends nothing new.
    """
    began = time.monotonic()
    with environment(home) as settings:
        digest = settings.digest(DIGEST)
        period = digest.period(label)
        use_instance(home)
        found = prepare_source(settings)
        say(f"customers {found.customers:,}, orders {found.orders:,}: {home / 'source.db'}")
        with Ledger(settings.ledger_url) as ledger:
            migrate.upgrade(ledger, settings.environment)
            sandbox = SandboxSettings(profile="harsh" if harsh else "none", seed=seed)
            with SandboxProcess(home / "sandbox.db", sandbox) as provider:
                os.environ["DIGEST_SANDBOX_URL"] = provider.url
                say(f"sandbox provider at {provider.url}, its store {home / 'sandbox.db'}")
                played = _run(settings, ledger, digest, period, provider, harsh, watch, say)
    return replace(played, seconds=time.monotonic() - began)


def _run(
    settings: Settings,
    ledger: Ledger,
    digest: Digest,
    period: Period,
    provider: SandboxProcess,
    harsh: bool,
    watch: Callable[[Ledger, Digest, Period], Any],
    say: Callable[[str], None],
) -> Played:
    say(f"late sending is allowed by the demo's specification: {digest.late.reason!r} (audited)")
    sent_now = runs = 0
    while True:
        runs += 1
        with watch(ledger, digest, period):
            outcome = run_period(digest, period)
        with ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, period.label)
            summary = reads.summarise(conn, ids)
            sent_now += reads.accepted_by_run(conn, ids, outcome.run_id)
        for error in outcome.errors:
            say(f"run {runs}: {error}")
        if summary.is_settled or not harsh or runs == MOST_RUNS:
            break
    checks = outcome if outcome.checks and outcome.succeeded else run_checks(digest, period)
    hit = provider.oracle().faults_hit() if harsh else {}
    return Played(
        digest=digest.name,
        period=period.label,
        summary=summary,
        judgement=judge(provider.oracle(), ledger, digest, period),
        sent_now=sent_now,
        runs=runs,
        checks=checks,
        faults=hit,
        missed_faults=tuple(fault for fault in HARSH_FAULTS if harsh and not hit.get(fault)),
        report=settings.reports / f"{digest.name}-{period.label}.html",
        seconds=0.0,
    )
