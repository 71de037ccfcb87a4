"""A report as flat numbers: what Dagster plots over periods, and what a command prints."""

from __future__ import annotations

from digest_pipeline.reconciliation.comparison import Comparison
from digest_pipeline.reconciliation.reporting.figures import Figures

Numbers = dict[str, int | float]


def as_numbers(figures: Figures) -> Numbers:
    """Return names to numbers: counts, shares between 0 and 1, and ``*_seconds``.

    A measure that does not exist, such as a delay before anything was claimed, is left out.
    """
    summary = figures.summary
    found: Numbers = {
        "selected": summary.selected,
        "excluded": sum(summary.excluded.values()),
        "eligible": figures.eligible,
        **figures.states,
        "reached": figures.reached,
        "open": figures.open,
        "held": sum(summary.held.values()),
        "unaccounted": sum(abs(one.unaccounted) for one in figures.tenants),
        "balanced": int(figures.balanced),
        "coverage": round(summary.coverage, 6),
        "objective": figures.digest.objective.coverage,
        "duplicates": summary.duplicates,
        "tenants": len(figures.tenants),
        "operator_actions": len(figures.actions),
        **{f"held_{reason}": count for reason, count in sorted(summary.held.items())},
        **{f"excluded_{reason}": count for reason, count in sorted(summary.excluded.items())},
        **{f"suppressed_{reason}": count for reason, count in sorted(summary.suppressed.items())},
    }
    return found | _attempts(figures) | _times(figures) | _comparison(figures.comparison) | _drift(figures)


def _attempts(figures: Figures) -> Numbers:
    total = sum(one.attempts for one in figures.tries)
    again = sum(one.tried_again for one in figures.tries)
    found: Numbers = {"attempts": total, "retry_rate": round(again / total, 6) if total else 0.0}
    for one in figures.tries:
        if one.outcome != "accepted":
            name = f"attempts_{one.failure_class or one.outcome}"
            found[name] = found.get(name, 0) + one.attempts
    return found


def _times(figures: Figures) -> Numbers:
    found: Numbers = {}
    if figures.delays is not None:
        found["claim_delay_p50_seconds"] = round(figures.delays.p50, 3)
        found["claim_delay_p95_seconds"] = round(figures.delays.p95, 3)
        found["claim_delay_max_seconds"] = round(figures.delays.longest, 3)
    if figures.summary.oldest_pending_seconds is not None:
        found["oldest_pending_seconds"] = round(figures.summary.oldest_pending_seconds, 3)
    if figures.summary.cleanup_lag_seconds is not None:
        found["cleanup_lag_seconds"] = round(figures.summary.cleanup_lag_seconds, 3)
    return found


def _comparison(comparison: Comparison | None) -> Numbers:
    if comparison is None:
        return {}
    return {
        "provider_asked": comparison.asked,
        "provider_confirmed": comparison.confirmed,
        "missing_at_provider": len(comparison.missing_at_provider),
        "unexpected_at_provider": len(comparison.unexpected_at_provider),
        "duplicated_at_provider": len(comparison.duplicated),
        "provider_unanswered": len(comparison.unanswered),
        "provider_outside_window": comparison.outside_window,
    }


def _drift(figures: Figures) -> Numbers:
    drift = figures.drift
    if drift is None:
        return {}
    return {
        "drift_added": drift.added,
        "drift_removed": drift.removed,
        "drift_readdressed": drift.readdressed,
    }
