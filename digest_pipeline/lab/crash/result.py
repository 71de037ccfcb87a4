"""Running one cell: set the stage, break it, recover it, judge it. Nothing a cell does stops the others."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from digest_pipeline.faults import Point
from digest_pipeline.lab.crash.cells import PAUSES, Cell, Kind
from digest_pipeline.lab.crash.inflict import Inflicted, inflict
from digest_pipeline.lab.crash.period import LABEL
from digest_pipeline.lab.crash.record import read_attempts, read_record
from digest_pipeline.lab.crash.recover import recover
from digest_pipeline.lab.crash.sequences import Replayed, lead
from digest_pipeline.lab.crash.stage import Case, Stage
from digest_pipeline.lab.crash.verdict import Record, Verdict, judge

CLEANING = (Point.INSIDE_CLEANUP, Point.AFTER_CLEANUP_COMMIT)


@dataclass(slots=True)
class Result:
    """What came of one cell. ``error``: the harness itself failed, which counts as a failure."""

    cell: Cell
    inflicted: Inflicted = field(default_factory=lambda: Inflicted(False))
    verdict: Verdict | None = None
    replayed: Replayed | None = None
    sends: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    late_results: int = 0
    retry_delays: tuple[float, ...] = ()
    cleanup_attempts: int = 0
    cleaned: int = 0
    runs: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether the cell was really made and every invariant holds in it."""
        if self.error or self.verdict is None or not self.inflicted.hit:
            return False
        untouched = self.replayed is None or not self.replayed.touched
        return self.verdict.holds and untouched and not self.inflicted.wrong_instants

    @property
    def why(self) -> str:
        """What does not hold, in a line; empty when all does."""
        said = [self.error] if self.error else []
        if not self.inflicted.hit and not self.error:
            said.append(f"not hit ({self.inflicted.note or self.inflicted.end})")
        if self.verdict is not None:
            said += [f"{kind}: {', '.join(keys)}" for kind, keys in self.verdict.violations.items()]
        if self.replayed is not None and self.replayed.touched:
            said.append(f"a replay moved rows in doubt: {', '.join(self.replayed.touched)}")
        if self.inflicted.wrong_instants:
            said.append(f"{self.inflicted.wrong_instants} instants by the worker's clock")
        return "; ".join(said)


def run_cell(stage: Stage, cell: Cell, keep: Path | None = None) -> Result:
    """Make one cell and return its result; never raises. What breaks is kept in ``keep``."""
    result, began = Result(cell), time.monotonic()
    try:
        with stage.case(cell, **_changes(cell)) as case:
            try:
                _make(case, result)
            finally:
                if keep is not None and not result.holds:
                    _keep(case, result, keep)
    except Exception as error:  # noqa: BLE001
        # One cell that cannot be made must not keep the others from being.
        result.error = f"{type(error).__name__}: {error}".strip()[:2000] or traceback.format_exc()
    result.seconds = round(time.monotonic() - began, 2)
    return result


def _changes(cell: Cell) -> dict[str, Any]:
    if cell.kind is Kind.SEQUENCE:
        # Longer than a run waits: each next try is another run's.
        return {"retry": {"base_seconds": 10, "cap_seconds": 20}}
    # One lane at its first pass: a process that stops then has nothing else under way.
    return {"sending": {"lanes": 1}} if cell.harm in PAUSES else {}


def _make(case: Case, result: Result) -> None:
    if case.cell.kind is Kind.SEQUENCE:
        result.inflicted, result.replayed = lead(case)
    else:
        result.inflicted = inflict(case)
    recover(case)
    with case.ledger() as ledger:
        attempts = read_attempts(ledger, case.digest, LABEL)
        record = read_record(ledger, case.digest, LABEL, case.expected, case.stage.provider)
    result.verdict = _judge(case.cell, record)
    result.attempts, result.retry_delays = attempts.by_outcome, attempts.retry_delays
    result.late_results = attempts.late
    result.sends = case.stage.provider.requests()
    result.runs = case.runs
    result.cleaned = sum(report.get("cleaned", 0) for report in case.reports)
    result.cleanup_attempts = len(case.reports) + (case.cell.point in CLEANING)


def _judge(cell: Cell, record: Record) -> Verdict:
    return judge(record, duplicates_excepted=int(cell.kind is Kind.DOCUMENTED_EXCEPTION))


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as plain data."""
    cell, verdict = result.cell, result.verdict
    found: dict[str, Any] = {
        "cell": cell.name,
        "kind": cell.kind,
        "point": cell.point,
        "fault": cell.harm,
        "sequence": cell.sequence,
        "engine": cell.engine,
        "can": cell.can,
        "holds": result.holds,
        "why": result.why,
        **asdict(result.inflicted),
        "sends": result.sends,
        "attempts": result.attempts,
        "late_results": result.late_results,
        "retry_delays": result.retry_delays,
        "cleanup_attempts": result.cleanup_attempts,
        "cleaned": result.cleaned,
        "runs": result.runs,
        "seconds": result.seconds,
    }
    if verdict is not None:
        found |= verdict.as_data()
    if result.replayed is not None:
        found["replay_refused"] = result.replayed.refused
    return found


def _keep(case: Case, result: Result, keep: Path) -> None:
    folder = keep / "".join(c if c.isalnum() else "-" for c in case.cell.name)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(case.folder, folder)
    (folder / "result.json").write_text(json.dumps(to_json(result), indent=1), encoding="utf-8")
    (folder / "nursery.log").write_text(case.stage.nursery.last_words(), encoding="utf-8")
