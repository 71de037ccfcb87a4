"""The reconciliation report of a period: a list for machines, a page for people, numbers for both."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digest_pipeline.eligibility.drift import Drift
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation.comparison import Comparison
from digest_pipeline.reconciliation.reporting.csv_file import replacing, write_csv
from digest_pipeline.reconciliation.reporting.figures import Figures, TenantFigures, read_figures
from digest_pipeline.reconciliation.reporting.html_page import page
from digest_pipeline.reconciliation.reporting.markdown import summary_of
from digest_pipeline.reconciliation.reporting.numbers import as_numbers
from digest_pipeline.reconciliation.reporting.outcomes import as_outcomes, unsent_reasons
from digest_pipeline.reconciliation.reporting.verdict import status_of
from digest_pipeline.spec import Digest


@dataclass(frozen=True, slots=True)
class Report:
    """What was written, and what it says.

    ``balanced``: every customer of the manifest is in exactly one state. ``numbers``: flat names to
    ints and floats. ``outcomes``: what became of everybody, under the names of ``as_outcomes``.
    ``table``: one row per tenant. ``reasons``: why customers got nothing. ``status``: a few words.
    ``markdown``: the short form, with what to do next.
    """

    csv: Path
    html: Path
    balanced: bool
    numbers: dict[str, int | float]
    outcomes: dict[str, int | float]
    table: list[dict[str, Any]]
    reasons: list[dict[str, Any]]
    status: str
    markdown: str


def write_report(
    ledger: Ledger,
    digest: Digest,
    period: Period,
    folder: Path,
    comparison: Comparison | None,
    run_id: str,
    *,
    drift: Drift | None = None,
) -> Report:
    """Write ``<digest>-<period>.csv`` and ``.html`` into ``folder`` and return what they say.

    All of it is one state of the ledger, also while others send. The files replace earlier ones whole
    and hold no address and no name. Raises UnknownKeyError when the period has no manifest.
    """
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    csv, html = (folder / f"{digest.name}-{period.label}.{kind}" for kind in ("csv", "html"))
    with ledger.snapshot() as conn:
        figures = read_figures(conn, digest, period, run_id, comparison, drift)
        listed = write_csv(conn, figures, csv)
    figures.problems.extend(_listed_otherwise(figures, listed))
    with replacing(html) as file:
        file.write(page(figures, csv.name))
    return Report(
        csv=csv,
        html=html,
        balanced=figures.balanced,
        numbers=as_numbers(figures) | {"seconds": round(time.monotonic() - began, 3)},
        outcomes=as_outcomes(figures),
        table=[as_row(one) for one in figures.tenants],
        reasons=unsent_reasons(figures),
        status=status_of(figures),
        markdown=summary_of(figures),
    )


def as_row(one: TenantFigures) -> dict[str, Any]:
    """Return a tenant's line of the identity: eligible, every state, and what is unaccounted for."""
    return {
        "tenant": one.tenant,
        "eligible": one.eligible,
        **one.states,
        "unaccounted": one.unaccounted,
        "coverage": round(one.coverage, 6),
        "balanced": one.balanced,
    }


def _listed_otherwise(figures: Figures, listed: Counter[tuple[str, str]]) -> list[str]:
    """Say where the list that was written differs from what the database counted."""
    counted = Counter({(one.tenant, state): n for one in figures.tenants for state, n in one.states.items()})
    return [
        f"tenant {tenant}: {counted[tenant, state]:,} are counted as {state}, {listed[tenant, state]:,} are listed"
        for tenant, state in sorted(counted.keys() | listed.keys())
        if counted[tenant, state] != listed[tenant, state]
    ]
