"""One chaos run: a big enough period, the schedule of a seed, a quiet time, and the verdict."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.lab.chaos.crew import Crew
from digest_pipeline.lab.chaos.schedule import Act, Action, schedule
from digest_pipeline.lab.crash.cells import Can, Cell, Engine, Kind
from digest_pipeline.lab.crash.period import LABEL
from digest_pipeline.lab.crash.provider import SandboxProvider
from digest_pipeline.lab.crash.record import read_attempts, read_record
from digest_pipeline.lab.crash.recover import recover
from digest_pipeline.lab.crash.stage import Case, Stage
from digest_pipeline.lab.crash.verdict import judge

RATE = 40.0
"""Sends a second: a period that so many seconds of trouble cannot finish."""

TIMEOUT_SECONDS, LEASE_SECONDS = 2.0, 14.0
"""Short, so that leases end by themselves while the trouble lasts."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """What is asked for."""

    seconds: float
    workers: int
    seed: int
    can: Can = Can.REPLAYS

    def actions(self) -> list[Action]:
        """Return what will happen. With look-ups only, a pause past the lease is the documented exception."""
        return schedule(self.seed, self.seconds, self.workers, long_pauses=self.can is not Can.LOOK_UP)


def play(trial: Trial, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Run a trial and return what happened and the verdict, as plain data."""
    began = time.monotonic()
    customers = int(trial.seconds * RATE)
    with tempfile.TemporaryDirectory(prefix="digest-chaos-") as folder:
        with Stage(Path(folder), SandboxProvider, customers=customers) as stage:
            cell = Cell(Kind.POINT, Engine.POSTGRESQL, trial.can)
            with stage.case(cell, **_changes(RATE)) as case:
                return _play(trial, case, tell) | {"seconds_in_all": round(time.monotonic() - began, 1)}


def _changes(rate: float) -> dict[str, Any]:
    return {
        "rate": {"per_second": rate, "burst": int(rate)},
        "sending": {
            "timeout_seconds": TIMEOUT_SECONDS,
            "lease_seconds": LEASE_SECONDS,
            "in_run_wait_seconds": 2,
            "run_limit_seconds": 30,
        },
        "retry": {"base_seconds": 0.2, "cap_seconds": 2, "max_attempts": 100},
    }


def _play(trial: Trial, case: Case, tell: Tell) -> dict[str, Any]:
    assert isinstance(case.stage.provider, SandboxProvider)
    _freeze(case)
    crew = Crew(case, case.stage.provider, trial.workers, trial.seconds + 60)
    began = time.monotonic()
    crew.start()
    for action in trial.actions():
        tell(f"{action.at:6.1f} s  {action.act} {action.fault or ''}")
        _until(crew, began + action.at)
        crew.do(action)
    _until(crew, began + trial.seconds)
    accepted_meanwhile = sum(1 for _ in case.stage.provider.acceptances())
    crew.end()
    tell("quiet: recovering")
    runs = _quiet(case)
    return _as_data(trial, case, crew, accepted_meanwhile, runs)


def _freeze(case: Case) -> None:
    with case.ledger() as ledger, Source(case.digest.source.value()) as source:
        period = case.digest.period(LABEL)
        frozen = freeze(ledger, source, case.digest, period, "freezing")
        compose(ledger, source, case.digest, period, frozen.manifest_ids, "freezing")


def _until(crew: Crew, at: float) -> None:
    """Look after the crew until an instant of the monotonic clock."""
    while True:
        crew.look_after()
        now = time.monotonic()
        if now >= at:
            return
        wake = crew.next_wake()
        time.sleep(min(0.1, at - now, max(0.0, wake - now) if wake is not None else 0.1))


def _quiet(case: Case) -> int:
    """Let no more go wrong, and recover as production does: the next runs, now at full speed."""
    provider = case.stage.provider
    assert isinstance(provider, SandboxProvider)
    provider.process.control.clear_faults()
    case.spec = case.stage.write_spec(case.folder, case.cell.can, **_changes(2_000))
    return recover(case)


def _as_data(trial: Trial, case: Case, crew: Crew, accepted_meanwhile: int, runs: int) -> dict[str, Any]:
    with case.ledger() as ledger:
        record = read_record(ledger, case.digest, LABEL, case.expected, case.stage.provider)
        attempts = read_attempts(ledger, case.digest, LABEL)
    verdict = judge(record)
    return {
        "lab": "chaos",
        **asdict(trial),
        "customers": case.stage.customers,
        "holds": verdict.holds,
        "kills": crew.done[Act.KILL],
        "done": dict(crew.done),
        "runs_that_failed": dict(crew.failures),
        "work_was_left": accepted_meanwhile < case.stage.customers,
        "accepted_meanwhile": accepted_meanwhile,
        "accepted": len({key for key, _ in record.acceptances}),
        "sends": case.stage.provider.requests(),
        "attempts": attempts.by_outcome,
        "runs_to_recover": runs,
        **verdict.as_data(most=20),
        "actions": [[action.at, action.act, action.worker] for action in trial.actions()],
    }
