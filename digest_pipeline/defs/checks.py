"""The asset checks: each asks one invariant about the run's period, and about all others by count.

A violation in the run's own period is an error; one in another period is a warning with its count, so
that a newer pass cannot hide an older failure.
"""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from dataclasses import dataclass
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from digest_pipeline.defs.names import asset_key, partition_of
from digest_pipeline.defs.plans import send_plan
from digest_pipeline.defs.resources import Installation
from digest_pipeline.errors import InputError
from digest_pipeline.ledger import reads
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation import invariants
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
    """One invariant as a check of an asset. ``everywhere``: also asked about all other periods."""

    asset: str
    invariant: Invariant
    blocking: bool = False
    everywhere: bool = False

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
    Check("reconciliation_report", invariants.coverage_meets_objective),
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
        plan = send_plan(installation, digest, digest.period(partition_of(context)), "check", "check")
        own = invariant(ask(installation.ledger, plan, sample=SAMPLE))
        bulk = bool(dict(own.facts)[IS_BULK])
        return _result(own, 0, dg.AssetCheckSeverity.ERROR if bulk else dg.AssetCheckSeverity.WARN)

    return evaluate


def _asset_check(digest: Digest, check: Check) -> dg.AssetChecksDefinition:
    doc = (check.invariant.__doc__ or "").strip().splitlines()[0]

    @dg.asset_check(
        asset=asset_key(digest, check.asset), name=check.name, blocking=check.blocking, description=doc
    )
    def evaluate(context: dg.AssetCheckExecutionContext, installation: Installation) -> dg.AssetCheckResult:
        period = digest.period(partition_of(context))
        with installation.ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, period.label)
            if not ids:
                raise InputError(f"{digest.name} {period.label} has no manifest: there is nothing to check")
            own = check.invariant(conn, digest, ids)
            others = _elsewhere(conn, digest, check, ids)
        if check.invariant is invariants.no_duplicate_sends and own.holds:
            own = _ask_provider(installation, digest, period)
        return _result(own, others)

    return evaluate


def _elsewhere(conn: Connection, digest: Digest, check: Check, ids: tuple[int, ...]) -> int:
    if not check.everywhere:
        return 0
    other = reads.other_manifest_ids(conn, digest.name, ids)
    return check.invariant(conn, digest, other).violations if other else 0


def _ask_provider(installation: Installation, digest: Digest, period: Period) -> Verdict:
    """Ask about keys with two or more attempts on the wire: only the provider knows of two messages."""
    plan = send_plan(installation, digest, period, "check", "check")
    found = ask(installation.ledger, plan, sample=0)
    keys = tuple(found.duplicated)[:SHOWN]
    return Verdict(
        len(found.duplicated),
        keys,
        "the provider lists more than one message for these keys",
        f"digest trace {keys[0]}" if keys else "",
        (
            ("provider_asked", found.asked),
            (UNANSWERED, len(found.unanswered)),
            *(((NOT_ASKED, found.reason),) if found.reason else ()),
        ),
    )


def _result(
    own: Verdict, elsewhere: int, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
) -> dg.AssetCheckResult:
    metadata: dict[str, Any] = {"violations": own.violations, "violations_in_other_periods": elsewhere}
    metadata.update(dict(own.facts))
    unanswered = int(metadata.get(UNANSWERED, 0))
    description = "holds"
    if not own.holds:
        metadata["keys"] = dg.MetadataValue.json(list(own.keys))
        metadata["next"] = own.next_command
        description = f"{own.violations}: {own.why}. Next: {own.next_command}"
    elif elsewhere:
        description = f"holds for this period; {elsewhere} violations in other periods"
    elif unanswered:
        description = f"holds as far as the ledger tells; {unanswered} keys could not be asked about"
    elif NOT_ASKED in metadata:
        description = f"holds as far as the ledger tells; not asked: {metadata[NOT_ASKED]}"
    return dg.AssetCheckResult(
        passed=own.holds and elsewhere == 0 and not unanswered,
        severity=dg.AssetCheckSeverity.WARN if own.holds else severity,
        description=description,
        metadata=metadata,
    )
