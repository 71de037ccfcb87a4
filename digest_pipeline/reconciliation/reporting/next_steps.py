"""What a person should do about a period, the most urgent first, each with the command for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from digest_pipeline.reconciliation.comparison import Comparison
from digest_pipeline.reconciliation.objectives import resume_command
from digest_pipeline.reconciliation.reporting.figures import Figures
from digest_pipeline.states import HoldReason, State

NEEDS_A_PERSON = (
    HoldReason.NO_EVIDENCE,
    HoldReason.KEY_EXPIRED,
    HoldReason.OTHER_ACCOUNT,
    HoldReason.INTEGRITY,
)
"""Why an unknown stays one until somebody decides."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. ``alarm``: something is wrong, and not merely unfinished."""

    text: str
    command: str = ""
    alarm: bool = False


def next_steps(figures: Figures) -> list[Step]:
    """Return what to do next; empty when the period is settled and nothing contradicts it."""
    return [*_wrong(figures), *_contradictions(figures.comparison), *_unfinished(figures)]


def _wrong(figures: Figures) -> Iterator[Step]:
    for problem in figures.problems:
        yield Step(
            f"The ledger does not add up: {problem}. Send nothing until this is understood",
            "digest check" + _which(figures),
            alarm=True,
        )
    if figures.duplicates:
        yield Step(
            f"{figures.summary.duplicates:,} customers were sent two messages: see how it came about",
            f"digest trace {figures.duplicates[0]}",
            alarm=True,
        )
    for name, why in figures.halted.items():
        yield Step(
            f"Sending through {name} is halted ({why}): repair the account, then run again", alarm=True
        )


def _contradictions(comparison: Comparison | None) -> Iterator[Step]:
    if comparison is None:
        return
    if missing := comparison.missing_at_provider:
        none_found = "none of the sent ones it was asked about; " if not comparison.confirmed else ""
        yield Step(
            f"The provider accepted {len(missing):,} messages and lists none of them ({none_found}"
            "ask the provider what became of them before anything is cleaned up)",
            f"digest trace {next(iter(missing))}",
            alarm=True,
        )
    if unexpected := comparison.unexpected_at_provider:
        yield Step(
            f"The provider has {len(unexpected):,} messages that the ledger does not call sent: "
            "an unknown settles with the next run, anything else needs a decision",
            f"digest trace {next(iter(unexpected))}",
            alarm=True,
        )
    if comparison.duplicated:
        yield Step(
            f"The provider lists more than one message for {len(comparison.duplicated):,} customers",
            f"digest trace {next(iter(comparison.duplicated))}",
            alarm=True,
        )


def _held(figures: Figures) -> Iterator[tuple[int, Step]]:
    """What waits and will not go by itself, reason by reason, with how many."""
    held = figures.summary.held
    run = "digest run" + _which(figures)
    if closed := held.get(HoldReason.WINDOW_CLOSED, 0):
        yield (
            closed,
            Step(
                f"{closed:,} are held: their delivery window has closed. To send them anyway, say why: in "
                "Dagster's launchpad with allow_late and reason, or in a terminal",
                f'{run} --allow-late "REASON"',
            ),
        )
    if disabled := held.get(HoldReason.SENDING_DISABLED, 0):
        text = f"{disabled:,} are held: sending is disabled (sending.enabled, or DIGEST_SENDING=off). "
        yield disabled, Step(text + "Enable it, then run this period again", run)
    if paused := held.get(HoldReason.PAUSED, 0):
        text = f"{paused:,} are held: sending is paused. Resume it, then run this period again"
        yield paused, Step(text, resume_command(figures.summary))
    if undecided := sum(held.get(reason, 0) for reason in NEEDS_A_PERSON):
        text = f"{undecided:,} are unknown and no evidence will come by itself: look at them and decide"
        yield undecided, Step(text, "digest unknowns list" + _which(figures))
    if not_yet := held.get(HoldReason.WINDOW_NOT_OPEN, 0):
        yield not_yet, Step(f"{not_yet:,} wait for their delivery window to open: nothing to do")


def _unfinished(figures: Figures) -> Iterator[Step]:
    states, left = figures.states, figures.open
    for count, step in _held(figures):
        left -= count
        yield step
    if left > 0:
        text = f"{left:,} are not settled yet; running again goes on where it stopped"
        yield Step(text, "digest run" + _which(figures))
    if figures.stopped:
        yield Step(
            f"{figures.stopped:,} stopped without a send ({states[State.FAILED]:,} failed, "
            f"{states[State.DEAD]:,} out of retries): repair the cause, then try those again",
            "digest dead-letters list" + _which(figures),
        )
    if not figures.meets_objective and not figures.open and not figures.stopped:
        yield Step(
            f"Coverage {figures.summary.coverage:.2%} is below the objective "
            f"{figures.digest.objective.coverage:.2%}, and nothing is left to send"
        )


def _which(figures: Figures) -> str:
    return f" --digest {figures.digest.name} --period {figures.period.label}"
