"""What became of everybody, under the names that every asset of Dagster shows it by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from digest_pipeline.outcomes import FailureClass
from digest_pipeline.reconciliation.reporting.figures import Figures
from digest_pipeline.reconciliation.reporting.numbers import Numbers
from digest_pipeline.reconciliation.reporting.speed import in_all
from digest_pipeline.states import State

ENDING = (
    FailureClass.RECIPIENT,
    FailureClass.CONTENT,
    FailureClass.CONNECT,
    FailureClass.TRANSIENT,
    FailureClass.WINDOW,
)
"""The classes a delivery can stop with; of the others none ends one."""

SAME_AS_AN_OUTCOME = frozenset({*State, "reached", "open"})
"""Names in a report's numbers whose counts are among the outcomes, or that would mean something else there."""


def as_outcomes(figures: Figures) -> Numbers:
    """Return the counts that people plot over periods. Every name is always there: 0 leaves no gap.

    In a sound ledger ``eligible`` is ``sent`` + ``suppressed`` + ``failed`` + ``written_off`` +
    ``unknown`` + ``waiting``. Rows that were cleaned stay ``sent``; ``failed`` holds those out of
    retries too; ``held`` are among the waiting and the unknown.
    """
    states, summary = figures.states, figures.summary
    speed = in_all(figures.speed.values())
    return {
        "eligible": figures.eligible,
        "sent": figures.reached,
        "suppressed": states[State.SUPPRESSED],
        "failed": figures.stopped,
        **{f"failed_{name}": 0 for name in ENDING},
        **{f"failed_{name}": count for name, count in summary.failed.items()},
        "written_off": states[State.WRITTEN_OFF],
        "unknown": states[State.UNKNOWN],
        "waiting": figures.open - states[State.UNKNOWN],
        "held": sum(summary.held.values()),
        "duplicates": summary.duplicates,
        "coverage": round(summary.coverage, 6),
        "sending_seconds": round(speed.seconds, 3),
        "messages_per_second": round(speed.messages_per_second, 1),
    }


def unsent_reasons(figures: Figures) -> list[dict[str, Any]]:
    """Return why customers got nothing, or nothing yet: one row per reason, the largest first."""
    return sorted(_reasons(figures), key=lambda row: (-row["customers"], row["outcome"], row["reason"]))


def _reasons(figures: Figures) -> Iterator[dict[str, Any]]:
    summary = figures.summary
    for outcome, counts in (
        ("excluded", summary.excluded),
        ("suppressed", summary.suppressed),
        ("failed", summary.failed),
        ("held", summary.held),
    ):
        for reason, count in counts.items():
            if count:
                yield {"outcome": outcome, "reason": str(reason), "customers": count}
