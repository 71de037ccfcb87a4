"""The asset checks: each asks one invariant about the run's period, and about all others by count.

A violation in the run's own period is an error; one in another period is a warning with its count, so
that a newer pass cannot hide an older failure.
"""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from dataclasses import dataclass

import dagster as dg
from sqlalchemy import Connection

from digest_pipeline.defs.check_results import result_of
from digest_pipeline.defs.names import PARTITION_TAG, asset_key, partition_of
from digest_pipeline.defs.plans import send_plan
from digest_pipeline.defs.resources import Installation
from digest_pipeline.errors import InputError
from digest_pipeline.ledger import reads
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation import invariants, objectives
from digest_pipeline.reconciliation.invariants import (
    IS_BULK,
    NOT_ASKED,
    SHOWN,
    UNANSWERED,
    Invariant,
    Verdict,
)
from digest_pipeline.reconciliation.publish import SAMPLE, ask
from digest_pipeline.spec import Digest


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant as a check of an asset. ``everywhere``: also asked about all other periods.

    ``severity``: of a violation in the run's own period.
    """

    asset: str
    invariant: Invariant
    blocking: bool = False
    everywhere: bool = False
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    @property
    def name(self) -> str:
        """The check's name in Dagster."""
        return getattr(self.invariant, "__name__", "check")


CHECKS = (
    Check("digest_rows", invariants.manifest_is_frozen, blocking=True),
    Check("digest_rows", invariants.manifest_accounts_for_everyone),
    Check("delivery_outcomes", invariants.no_duplicate_sends, blocking=True, everywhere=True),
    Check("delivery_outcomes", invariants.every_delivery_is_visible, everywhere=True),
    Check("delivery_outcomes", invariants.attempts_within_policy),
    # A held period is no fault, and must be seen on the asset itself: its own run ends green. Only a check
    # marks the asset in the graph, and only of its own period: a week left unsent for good is not news.
    Check("delivery_outcomes", objectives.nothing_is_held, severity=dg.AssetCheckSeverity.WARN),
    Check("reconciliation_report", objectives.coverage_meets_objective),
    Check("reconciliation_report", invariants.no_unknown_past_retention, everywhere=True),
    Check(
        "cleaned_digest_rows", invariants.cleanup_only_after_definitive_send, blocking=True, everywhere=True
    ),
    Check("cleaned_digest_rows", invariants.one_cleanup_per_key, everywhere=True),
)


def checks_of(digest: Digest) -> list[dg.AssetChecksDefinition]:
    """Return a digest's asset checks."""
    return [*(_asset_check(digest, check) for check in CHECKS), _listing_check(digest)]


def _listing_check(digest: Digest) -> dg.AssetChecksDefinition:
    """The one check whose question is the provider's to answer. It keeps cleanup from going on."""
    invariant = invariants.provider_lists_what_it_accepted
    doc = (invariant.__doc__ or "").strip().splitlines()[0]

    @dg.asset_check(
        asset=asset_key(digest, "reconciliation_report"),
        name=invariant.__name__,
        blocking=True,
        description=doc,
    )
    def evaluate(context: dg.AssetCheckExecutionContext, installation: Installation) -> dg.AssetCheckResult:
        period = _checked_period(context, digest, installation)
        plan = send_plan(installation, digest, period, "check", "check")
        own = invariant(ask(installation.ledger, plan, sample=SAMPLE))
        bulk = bool(dict(own.facts)[IS_BULK])
        severity = dg.AssetCheckSeverity.ERROR if bulk else dg.AssetCheckSeverity.WARN
        return result_of(installation.ledger, digest, period, own, severity=severity)

    return evaluate


def _asset_check(digest: Digest, check: Check) -> dg.AssetChecksDefinition:
    doc = (check.invariant.__doc__ or "").strip().splitlines()[0]

    @dg.asset_check(
        asset=asset_key(digest, check.asset), name=check.name, blocking=check.blocking, description=doc
    )
    def evaluate(context: dg.AssetCheckExecutionContext, installation: Installation) -> dg.AssetCheckResult:
        period = _checked_period(context, digest, installation)
        with installation.ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, period.label)
            if not ids:
                raise InputError(f"{digest.name} {period.label} has no manifest: there is nothing to check")
            own = check.invariant(conn, digest, ids)
            others = _elsewhere(conn, digest, check, ids)
        if check.invariant is invariants.no_duplicate_sends and own.holds:
            own = _ask_provider(installation, digest, period, own)
        return result_of(installation.ledger, digest, period, own, others, check.severity)

    return evaluate


def _checked_period(
    context: dg.AssetCheckExecutionContext, digest: Digest, installation: Installation
) -> Period:
    """Return the run's period; the newest frozen one where a check's own page started it and asked for none."""
    if PARTITION_TAG in context.run.tags:
        return digest.period(partition_of(context))
    with installation.ledger.read() as conn:
        frozen = reads.frozen_periods(conn, digest.name)
    if not frozen:
        raise InputError(f"{digest.name} was never run: there is nothing to check")
    return digest.period(frozen[-1])


def _elsewhere(conn: Connection, digest: Digest, check: Check, ids: tuple[int, ...]) -> Verdict:
    other = reads.other_manifest_ids(conn, digest.name, ids) if check.everywhere else ()
    return check.invariant(conn, digest, other) if other else Verdict()


def _ask_provider(installation: Installation, digest: Digest, period: Period, own: Verdict) -> Verdict:
    """Ask about keys with two or more attempts on the wire: only the provider knows of two messages."""
    plan = send_plan(installation, digest, period, "check", "check")
    found = ask(installation.ledger, plan, sample=0)
    keys = tuple(found.duplicated)[:SHOWN]
    return Verdict(
        len(found.duplicated),
        keys,
        "the provider lists more than one message for these customers",
        f"digest trace {keys[0]}" if keys else "",
        (
            *own.facts,
            ("provider_asked", found.asked),
            (UNANSWERED, len(found.unanswered)),
            *(((NOT_ASKED, found.reason),) if found.reason else ()),
        ),
    )
