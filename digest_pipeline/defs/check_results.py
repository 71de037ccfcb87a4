"""A verdict as Dagster shows it: in the first line what, which and what next; below it the deliveries."""

from __future__ import annotations

from typing import Any

import dagster as dg

from digest_pipeline.defs.metadata import counted, table
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation import broken
from digest_pipeline.reconciliation.invariants import IS_BULK, NOT_ASKED, UNANSWERED, Verdict
from digest_pipeline.spec import Digest

NAMED = 3
"""Operation keys in the first line; the table has up to twenty."""

_NOBODY = Verdict()
_COLUMNS = {
    "operation_key": "string",
    "customer_id": "string",
    "state": "string",
    "attempts": "int",
}


def result_of(
    ledger: Ledger,
    digest: Digest,
    period: Period,
    own: Verdict,
    elsewhere: Verdict = _NOBODY,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    """Return a check's result: ``severity`` for a violation of the run's own period that is final, else a warning.

    It names the period: Dagster shows none for a check.
    """
    unanswered = int(dict(own.facts).get(UNANSWERED, 0))
    text, command = _told(ledger, digest, own, elsewhere)
    return dg.AssetCheckResult(
        passed=own.holds and elsewhere.holds and not unanswered,
        severity=dg.AssetCheckSeverity.WARN if own.holds or not own.is_final else severity,
        description=f"{period.label}: {text}" + (f" Next: {command}" if command else ""),
        metadata={"period": period.label, **_metadata(ledger, own, elsewhere, command)},
    )


def _told(ledger: Ledger, digest: Digest, own: Verdict, elsewhere: Verdict) -> tuple[str, str]:
    """Return the first line, and the command that comes next."""
    facts = dict(own.facts)
    if not own.holds:
        return f"{counted(own.violations, 'violation')}: {own.why}{_named(own)}.", own.next_command
    if not elsewhere.holds:
        with ledger.read() as conn:
            periods = broken.periods_of(conn, elsewhere.keys)
        where = f" ({', '.join(periods)})" if periods else ""
        text = (
            f"holds for this period; {counted(elsewhere.violations, 'violation')} in other periods{where}: "
            f"{elsewhere.why}{_named(elsewhere)}."
        )
        return text, f"digest check --digest {digest.name} --period {periods[0]}" if periods else ""
    if unanswered := facts.get(UNANSWERED):
        return f"holds as far as the ledger tells; {unanswered} keys could not be asked about.", ""
    if NOT_ASKED in facts:
        return f"holds as far as the ledger tells; not asked: {facts[NOT_ASKED]}.", ""
    return f"holds. Looked at: {_looked_at(facts)}.", ""


def _named(verdict: Verdict) -> str:
    shown = ", ".join(verdict.keys[:NAMED])
    more = verdict.violations - NAMED
    return f". Deliveries: {shown}" + (f" and {more:,} more" if more > 0 else "") if shown else ""


def _looked_at(facts: dict[str, Any]) -> str:
    shown = ((name, value) for name, value in facts.items() if name not in (IS_BULK, UNANSWERED))
    return ", ".join(
        f"{name.replace('_', ' ')} {value:,}"
        if isinstance(value, int)
        else f"{name.replace('_', ' ')} {value:g}"
        for name, value in shown
    )


def _metadata(ledger: Ledger, own: Verdict, elsewhere: Verdict, command: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "violations": own.violations,
        "violations_in_other_periods": elsewhere.violations,
        **dict(own.facts),
    }
    if own.holds and elsewhere.holds:
        return found
    keys = (elsewhere if own.holds else own).keys
    if command:
        found["next"] = command  # as text: Dagster hides Markdown behind a link there
    if keys:
        with ledger.read() as conn:
            found["which"] = _which(broken.rows_of(conn, keys))
    found["keys"] = dg.MetadataValue.json(list(keys))
    return found


def _which(rows: list[dict[str, Any]]) -> dg.TableMetadataValue:
    reason = {"reason": "string"} if any(row["reason"] for row in rows) else {}
    return table(_COLUMNS | reason, rows)
