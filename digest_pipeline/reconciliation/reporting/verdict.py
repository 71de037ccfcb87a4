"""The one sentence that a report begins with."""

from __future__ import annotations

from dataclasses import dataclass

from digest_pipeline.reconciliation.reporting.figures import Figures


@dataclass(frozen=True, slots=True)
class Verdict:
    """``level``: ``good``, ``wait`` (unfinished) or ``bad`` (something is wrong)."""

    level: str
    headline: str
    detail: str


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


def _unfinished(figures: Figures) -> Verdict:
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
