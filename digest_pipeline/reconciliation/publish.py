"""Publishing a period's report: ask the provider, then write the files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.eligibility.drift import Drift
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation.comparison import Comparison, compare_with_provider
from digest_pipeline.reconciliation.reporting.report import Report, write_report

SAMPLE = 200
"""Sent keys the provider is asked about, spread over the manifest, beside every doubtful one."""


def publish_report(
    ledger: Ledger,
    plan: SendPlan,
    period: Period,
    folder: Path,
    *,
    ask_provider: bool = True,
    drift: Drift | None = None,
) -> Report:
    """Write the report of a period and return it.

    ``ask_provider`` False: the account is refused. ``drift``: how the source differs from the manifest
    now, where somebody has looked.
    """
    comparison = ask(ledger, plan, SAMPLE) if ask_provider else None
    return write_report(ledger, plan.digest, period, folder, comparison, plan.run_id, drift=drift)


def ask(ledger: Ledger, plan: SendPlan, sample: int) -> Comparison:
    """Compare the ledger with the provider's look-ups, where it has any."""

    async def compare() -> Comparison:
        async with plan.gateway:
            return await compare_with_provider(ledger, plan, sample=sample)

    return asyncio.run(compare())
