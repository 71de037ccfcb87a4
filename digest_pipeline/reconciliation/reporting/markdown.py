"""The report in a few lines, for Dagster's page of an asset and for a terminal."""

from __future__ import annotations

from digest_pipeline.reconciliation.reporting.figures import Figures
from digest_pipeline.reconciliation.reporting.next_steps import next_steps
from digest_pipeline.reconciliation.reporting.verdict import verdict_of

MOST_STEPS = 6


def summary_of(figures: Figures) -> str:
    """Return the verdict, the identity, what contradicts it, and what to do next."""
    verdict = verdict_of(figures)
    parts = [f"{count:,} {state.replace('_', ' ')}" for state, count in figures.states.items() if count]
    equals = "=" if figures.balanced else "≠"
    lines = [
        f"**{verdict.headline}**",
        "",
        f"{figures.eligible:,} eligible {equals} {' + '.join(parts) or '0'}. Coverage "
        f"{figures.summary.coverage:.2%} (objective {figures.digest.objective.coverage:.2%}), "
        f"duplicates {figures.summary.duplicates:,}.",
    ]
    held = figures.summary.held
    if held:
        lines.append(
            "Held: " + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in sorted(held.items())) + "."
        )
    comparison = figures.comparison
    if comparison is not None and comparison.asked:
        lines.append(
            f"Provider: asked about {comparison.asked:,}, {comparison.confirmed:,} confirmed, "
            f"{len(comparison.missing_at_provider):,} missing there, "
            f"{len(comparison.unexpected_at_provider):,} unexpected there."
        )
    if comparison is not None and comparison.reason:
        lines.append(f"Provider: {comparison.reason}.")
    steps = next_steps(figures)
    if steps:
        lines += ["", "Next:", ""]
        lines += [
            f"- {step.text}" + (f": `{step.command}`" if step.command else "") for step in steps[:MOST_STEPS]
        ]
    return "\n".join(lines) + "\n"
