"""The one sentence that a report begins with."""

from __future__ import annotations

from dataclasses import dataclass

from digest_pipeline.reconciliation.reporting.figures import Figures
from digest_pipeline.states import HoldReason


@dataclass(frozen=True, slots=True)
class Verdict:
    """``level``: ``good``, ``wait`` (unfinished) or ``bad`` (something is wrong)."""

    level: str
    headline: str
    detail: str


_HELD = {
    HoldReason.WINDOW_CLOSED: (
        "their delivery window has closed",
        "somebody lets them be late, with a reason",
    ),
    HoldReason.WINDOW_NOT_OPEN: ("their delivery window is not open yet", "it opens"),
    HoldReason.PAUSED: ("sending is paused", "somebody resumes it"),
    HoldReason.SENDING_DISABLED: ("sending is disabled", "somebody enables it"),
    HoldReason.RESTORED: ("the ledger was restored from a backup", "a run has looked for what its copy sent"),
    HoldReason.CONTENT_NOT_SEALED: ("their content is not sealed", "digest_rows is materialised"),
}
"""Why a whole manifest waits, and until when."""


def status_of(figures: Figures) -> str:
    """Return ``complete`` or ``incomplete``, with what is held and why."""
    held = {reason: count for reason, count in figures.summary.held.items() if count}
    status = "incomplete" if figures.open else "complete"
    return status + (": held " + ", ".join(f"{why} {n}" for why, n in held.items()) if held else "")


def verdict_of(figures: Figures) -> Verdict:
    """Return how a period stands. What is wrong outranks what is unfinished."""
    if not figures.balanced:
        return Verdict(
            "bad",
            "The ledger does not add up",
            "Not every customer of the manifest is in exactly one state. Send nothing until it is understood.",
        )
    if figures.summary.duplicates or (figures.comparison and figures.comparison.duplicated):
        return Verdict("bad", "Some customers were sent more than one message", "See the duplicates below.")
    if figures.comparison and not figures.comparison.agrees:
        return Verdict(
            "bad", "Ledger and provider disagree", "One of them has messages that the other has not."
        )
    if figures.halted:
        return Verdict("bad", "Sending is halted", "The provider refuses the account; nothing more is sent.")
    return _unfinished(figures)


def _held(figures: Figures) -> Verdict | None:
    """What keeps everybody who is left, where that is one reason for all of them."""
    held = {reason: count for reason, count in figures.summary.held.items() if count}
    ((reason, count),) = held.items() if len(held) == 1 else ((None, 0),)
    if reason not in _HELD or count != figures.open:
        return None
    because, until = _HELD[HoldReason(reason)]
    return Verdict(
        "wait",
        f"Held: {count:,} of {figures.eligible:,} are not sent, because {because}",
        f"Every customer is accounted for; these wait until {until}.",
    )


def _unfinished(figures: Figures) -> Verdict:
    if held := _held(figures):
        return held
    if figures.open:
        return Verdict(
            "wait",
            f"{figures.open:,} of {figures.eligible:,} deliveries are not settled yet",
            "Every customer is accounted for; some are still waiting or unknown.",
        )
    if not figures.meets_objective:
        return Verdict(
            "bad",
            "Settled, below the objective",
            "Every customer is accounted for, and fewer than promised were reached in time.",
        )
    return Verdict("good", "Settled", "Every customer is accounted for, and nothing is left to do.")
