"""Playing the demo: one real week through Dagster to a provider on this machine, judged by its store."""

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
from digest_pipeline.demo.providers import PROVIDERS, Provider, Stage
from digest_pipeline.demo.source import SourceSummary, load_source
from digest_pipeline.ledger import migrate, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.reads import Summary
from digest_pipeline.periods import Period
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest
from digest_pipeline.states import UNSETTLED, State

DIGEST = "customer_digest"
MOST_RUNS = 6
"""Runs until a harsh week is settled: a halted one needs another after the account works again."""


@dataclass(frozen=True, slots=True)
class Played:
    """What the demo showed. ``unfinished``: rows are left that another run would settle."""

    gateway: str
    digest: str
    period: str
    summary: Summary
    judgement: Judgement
    sent_now: int
    runs: int
    unfinished: bool
    checks: RunOutcome
    faults: dict[str, int]
    missed_faults: tuple[str, ...]
    report: Path
    seconds: float

    @property
    def proves_it(self) -> bool:
        """Whether nobody got two, nobody was lost, and all that could be settled is."""
        return self.judgement.agrees and not self.unfinished and not self.missed_faults

    @property
    def checks_failed(self) -> int:
        """How many asset checks fail the gate."""
        return sum(check.is_failure for check in self.checks.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the demo's result as plain values."""
        found: dict[str, Any] = {
            "gateway": self.gateway,
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


def demo_home(settings: Settings, gateway: str, *, harsh: bool) -> Path:
    """Return the folder of a gateway's demo. A harsh demo starts from nothing: a week that is sent hits no faults."""
    plain = settings.home if gateway == "sandbox" else settings.home / gateway
    if not harsh:
        return plain
    home = plain / "harsh"
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
    with environment_of(wanted):
        yield Settings.from_environment()


@contextmanager
def environment_of(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process; at the end they are what they were."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def play(
    stage: Stage,
    gateway: str,
    label: str,
    *,
    watch: Callable[[Ledger, Digest, Period], Any],
    say: Callable[[str], None],
) -> Played:
    """Send one week of the data set and return what came of it. Raises InputError for a wrong week.

    Run again for the same week, gateway and folder, it sends nothing new.
    """
    began = time.monotonic()
    home = stage.home
    with environment(home) as settings:
        digest = settings.digest(DIGEST)
        period = digest.period(label)
        use_instance(home)
        found = prepare_source(settings)
        say(f"customers {found.customers:,}, orders {found.orders:,}: {home / 'source.db'}")
        with Ledger(settings.ledger_url) as ledger:
            migrate.upgrade(ledger, settings.environment)
            with PROVIDERS[gateway](stage) as provider, environment_of(provider.environment):
                say(f"{provider.place}, its store {provider.store}")
                digest = digest.model_copy(update={"gateway": provider.choice})
                say(f"late sending is allowed by the demo's specification: {digest.late.reason!r} (audited)")
                play = _Play(settings, ledger, digest, period, provider, watch, say)
                return replace(play.until_settled(stage.harsh), seconds=time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Play:
    """One week on its way to one provider."""

    settings: Settings
    ledger: Ledger
    digest: Digest
    period: Period
    provider: Provider
    watch: Callable[[Ledger, Digest, Period], Any]
    say: Callable[[str], None]

    def until_settled(self, harsh: bool) -> Played:
        """Run the week; a harsh one again and again, until nothing is left that another run would settle."""
        sent_now = runs = 0
        while True:
            runs += 1
            outcome, summary, sent = self._run()
            sent_now += sent
            for error in outcome.errors:
                self.say(f"run {runs}: {error}")
            if not harsh or runs == MOST_RUNS or not self._is_open(summary):
                break
        checks = outcome if outcome.checks and outcome.succeeded else run_checks(self.digest, self.period)
        hit = self.provider.oracle().faults_hit() if harsh else {}
        return Played(
            gateway=self.digest.gateway.kind,
            digest=self.digest.name,
            period=self.period.label,
            summary=summary,
            judgement=judge(self.provider.oracle(), self.ledger, self.digest, self.period),
            sent_now=sent_now,
            runs=runs,
            unfinished=self._is_open(summary),
            checks=checks,
            faults=hit,
            missed_faults=tuple(one for one in self.provider.faults if harsh and not hit.get(one)),
            report=self.settings.reports / f"{self.digest.name}-{self.period.label}.html",
            seconds=0.0,
        )

    def _run(self) -> tuple[RunOutcome, Summary, int]:
        with self.watch(self.ledger, self.digest, self.period):
            outcome = run_period(self.digest, self.period)
        with self.ledger.read() as conn:
            ids = reads.manifest_ids(conn, self.digest.name, self.period.label)
            sent = reads.accepted_by_run(conn, ids, outcome.run_id)
            return outcome, reads.summarise(conn, ids), sent

    def _is_open(self, summary: Summary) -> bool:
        """Whether rows are left that settle themselves; an unknown does only where the provider knows keys."""
        left = UNSETTLED if self.provider.settles_unknowns else UNSETTLED - {State.UNKNOWN}
        return any(summary.states.get(state, 0) for state in left)
