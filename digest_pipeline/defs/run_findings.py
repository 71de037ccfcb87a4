"""What a run says to whoever is told: what failed in it, what held, and what it mended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from digest_pipeline.defs.checks import CHECKS
from digest_pipeline.defs.names import (
    ASSETS,
    OPERATOR_TAG,
    PARTITION_TAG,
    PERIOD_TAG,
    checks_job_name,
    job_name,
)
from digest_pipeline.errors import DigestError
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.ledger.incidents import Identity
from digest_pipeline.notify.incident import SHOWN_KEYS, Facts, Finding, Kind, Severity
from digest_pipeline.periods import parse_period
from digest_pipeline.reconciliation import invariants
from digest_pipeline.spec import Digest

WILL_RETRY_TAG = "dagster/will_retry"
COLLECT = "collect_outcomes"
BLOCKING = {one.name for one in CHECKS if one.blocking} | {
    invariants.provider_lists_what_it_accepted.__name__
}
_CHECK_STOPPED_THE_RUN = "DagsterAssetCheckFailedError"
_ENDS = {
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
}


@dataclass(frozen=True, slots=True)
class About:
    """Which digest and period a run is about; an order may be of none."""

    digest: str
    period: str
    is_order: bool = False


def about(run: dg.DagsterRun, digests: Mapping[str, Digest]) -> About | None:
    """Return what a run is about, or None for a run that is none of this code location's."""
    if OPERATOR_TAG in run.tags:
        named = _configured(run.run_config)
        digest = digests.get(named.get("digest", ""))
        return About(digest.name if digest else "", _label(digest, named.get("period", "")), is_order=True)
    digest = digests.get(run.tags.get(PERIOD_TAG, "").partition(":")[0]) or _by_what_it_runs(run, digests)
    if digest is None:
        return None
    return About(digest.name, _label(digest, run.tags.get(PARTITION_TAG, "")))


def has_ended(run: dg.DagsterRun) -> bool:
    """Whether a run has come to its end, well or not."""
    return run.status in _ENDS


def failures(
    instance: dg.DagsterInstance, record: dg.RunRecord, what: About, *, halted: bool
) -> Iterator[Finding]:
    """Yield why a run that ended failed or was stopped; nothing where a retry is coming by itself.

    A step that a blocking check stopped is the check's incident, and a halt that people hear of
    (``halted``) is its own: one cause, one incident.
    """
    run = record.dagster_run
    if run.status is dg.DagsterRunStatus.CANCELED:
        yield _finding(record, what, Kind.RUN_CANCELED, run.job_name, Facts("Somebody stopped this run."))
    if run.status is not dg.DagsterRunStatus.FAILURE or _may_be_retried(instance, run):
        return
    steps = _events(instance, run.run_id, dg.DagsterEventType.STEP_FAILURE)
    kind = Kind.ORDER_FAILED if what.is_order else Kind.RUN_FAILED
    for _, event in steps:
        step, (name, text) = event.step_key or "", _reason(event)
        asset = next((one for one in ASSETS if step.startswith(f"{what.digest}__{one}")), "")
        if name == _CHECK_STOPPED_THE_RUN or (halted and COLLECT in step):
            continue
        where = run.job_name if what.is_order else step.removeprefix(f"{what.digest}__") or run.job_name
        facts = Facts(text or f"It ended with {name}.", asset=asset)
        yield _finding(record, what, kind, f"{where}:{name}", facts)
    if not steps:
        text = "No step failed: its process was killed, could not start, or ran longer than it may."
        reason = run.tags.get("dagster/failure_reason", "UNKNOWN").lower()
        yield _finding(record, what, kind, f"{run.job_name}:{reason}", Facts(text))


def checks(
    instance: dg.DagsterInstance, record: dg.RunRecord, what: About
) -> Iterator[tuple[int, str, About, Finding | None]]:
    """Yield our checks that were evaluated: when (microseconds), name, about what, and what is wrong, if anything.

    A check itself says which period it is about: one that is started from its own page has no partition.
    """
    run = record.dagster_run
    for at, event in _events(instance, run.run_id, dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        found = event.asset_check_evaluation_data
        period = found.metadata.get("period")
        if period is None or found.asset_key.path[0] != what.digest:
            continue  # a check of somebody else's, whose words may say anything
        of = replace(what, period=str(period.value))
        yield at, found.check_name, of, None if found.passed else _failed_check(found, of, run, at)


def mends(run: dg.DagsterRun, job: str, asset: str) -> bool:
    """Whether a run that succeeded did again what failed in ``job`` at ``asset`` (empty: as a whole)."""
    if OPERATOR_TAG in run.tags:
        return run.job_name == job  # an order does nothing of what a period's run does
    selected = {key.path[-1] for key in run.asset_selection or ()}
    if selected and asset:
        return asset in selected
    # A job that materialises the whole period runs its checks too; a job of checks mends only its own.
    return run.job_name == job or (bool(asset) and not selected and not run.job_name.endswith("_checks"))


def _failed_check(found: dg.AssetCheckEvaluation, what: About, run: dg.DagsterRun, at: int) -> Finding:
    is_error = found.severity is dg.AssetCheckSeverity.ERROR
    said = {name: value.value for name, value in found.metadata.items()}
    keys = said.get("keys")
    text, _, command = (found.description or "It does not hold.").partition(" Next: ")
    facts = Facts(
        text,
        command,
        tuple((name, count) for name, count in said.items() if type(count) is int),
        tuple(map(str, keys[:SHOWN_KEYS])) if isinstance(keys, list) else (),
        run.run_id,
        run.job_name,
        found.asset_key.path[-1],
    )
    severity = Severity.CRITICAL if found.check_name in BLOCKING else Severity.ERROR
    kind = Kind.CHECK_FAILED if is_error else Kind.CHECK_WARNED
    identity = Identity(kind, what.digest, what.period, found.check_name)
    return Finding(identity, severity if is_error else Severity.WARNING, facts, at)


def _finding(record: dg.RunRecord, what: About, kind: Kind, subject: str, facts: Facts) -> Finding:
    run = record.dagster_run
    severity = Severity.INFO if kind is Kind.RUN_CANCELED else Severity.ERROR
    which = f" --digest {what.digest}" + (f" --period {what.period}" if what.period else "")
    whole = Facts(
        facts.text,
        "" if what.is_order else f"digest status{which}",
        (),
        (),
        run.run_id,
        run.job_name,
        facts.asset,
    )
    return Finding(Identity(kind, what.digest, what.period, subject), severity, whole, ended_at(record))


def ended_at(record: dg.RunRecord) -> int:
    """Return when a run ended, in microseconds."""
    return int((record.end_time or record.update_timestamp.timestamp()) * 1e6)


def _may_be_retried(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether a retry is coming. The tag follows the failure: without it, the next look will tell."""
    tag = run.tags.get(WILL_RETRY_TAG)
    return instance.run_retries_enabled if tag is None else tag == "true"


def _events(
    instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType
) -> list[tuple[int, dg.DagsterEvent]]:
    records = instance.get_records_for_run(run_id, of_type=kind).records
    entries = (record.event_log_entry for record in records)
    return [(int(one.timestamp * 1e6), one.dagster_event) for one in entries if one.dagster_event is not None]


def _reason(event: dg.DagsterEvent) -> tuple[str, str]:
    """Return the error's class and its text, where it is one of ours: nobody else's is free of data."""
    from digest_pipeline import errors

    data = event.step_failure_data
    error = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    name = (error.cls_name if error is not None else None) or "failure"
    told = data.user_failure_data.description if data.user_failure_data else None
    if told is None and error is not None and hasattr(errors, name):
        told = error.message.strip().partition(": ")[2]
    return name, sanitise(told or "")


def _configured(run_config: Any) -> dict[str, str]:
    ops = run_config.get("ops", {}) if isinstance(run_config, Mapping) else {}
    given = (op.get("config", {}) for op in ops.values() if isinstance(op, Mapping))
    return {name: str(value) for one in given for name, value in one.items() if value is not None}


def _by_what_it_runs(run: dg.DagsterRun, digests: Mapping[str, Digest]) -> Digest | None:
    for digest in digests.values():
        if run.job_name in (job_name(digest), checks_job_name(digest)):
            return digest
    assets = {key.path[0] for key in run.asset_selection or ()}
    assets |= {check.asset_key.path[0] for check in run.asset_check_selection or ()}
    return next((digests[name] for name in sorted(assets) if name in digests), None)


def _label(digest: Digest | None, text: str) -> str:
    if digest is None or not text:
        return ""
    try:
        return parse_period(text, digest.cadence, digest.time_zone).label
    except DigestError:
        return ""
