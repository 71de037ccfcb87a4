"""The runs that sensors start: never beside another run of the period, and less and less often in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from digest_pipeline.defs.names import (
    ASSETS,
    FOLLOW_UP_AT_TAG,
    FOLLOW_UP_TAG,
    PARTITION_TAG,
    as_instant,
    asset_key,
    job_name,
    period_tag,
)
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

MOST_REQUESTS = 4
"""Runs that one tick asks for; the others' turn comes with the next ticks."""

FIRST_WAIT = timedelta(minutes=1)
LONGEST_WAIT = timedelta(hours=1)
REMEMBERED = timedelta(days=1)
_LOOKED_AT = 16

ACTIVE = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that there is a reason for, due since an instant.

    ``checks``: of other assets than ``assets``, whose own checks always run.
    """

    period: Period
    reason: str
    due_at: datetime
    assets: tuple[str, ...] = ASSETS
    checks: tuple[dg.AssetCheckKey, ...] | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """The runs that sensors started for one reason in one period: when, and the newest one's id."""

    at: tuple[datetime, ...] = ()
    newest: str = "none"

    def not_before(self, now: datetime) -> datetime | None:
        """Return until when the next one waits; None: it may start.

        The wait after the n-th run of the last day is 1, 2, 4, ... minutes and at most an hour, counted
        from when it was asked for: at most 30 runs a day for one reason, whatever they achieve.
        """
        lately = [at for at in self.at if now - REMEMBERED < at <= now]
        if not lately:
            return None
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (len(lately) - 1))
        return max(lately) + wait if max(lately) + wait > now else None


def answer(
    context: dg.SensorEvaluationContext,
    digest: Digest,
    wanted: Sequence[Wanted],
    now: datetime,
    *,
    note: str = "",
    cursor: str | None = None,
) -> dg.SensorResult:
    """Return a tick's requests, at most MOST_REQUESTS in the order given, or why there are none."""
    requests: list[dg.RunRequest] = []
    waiting = [note] if note else []
    for one in wanted:
        if len(requests) == MOST_REQUESTS:
            break
        label = one.period.label
        if (run := active_run(context.instance, digest, one.period)) is not None:
            waiting.append(f"{label}, {one.reason}: run {run.run_id[:8]} of it is queued or in progress")
            continue
        earlier = earlier_runs(context.instance, digest, one.period, one.reason)
        if (until := earlier.not_before(now)) is not None:
            waiting.append(
                f"{label}, {one.reason}: tried before, and again after {until:%Y-%m-%d %H:%M:%S} UTC"
            )
            continue
        requests.append(_request(digest, one, earlier, now))
    if requests:
        return dg.SensorResult(run_requests=requests, cursor=cursor)
    reason = dg.SkipReason("; ".join(waiting) or "nothing is to be done")
    return dg.SensorResult(skip_reason=reason, cursor=cursor)


def _request(digest: Digest, wanted: Wanted, earlier: Earlier, now: datetime) -> dg.RunRequest:
    # A run key is used once and for ever. This one changes with the due time, and with every run that was
    # started for the same reason: so the same state asks once, and is never kept from being asked again.
    due = wanted.due_at.isoformat(timespec="seconds")
    whole = wanted.assets == ASSETS
    return dg.RunRequest(
        run_key=f"{wanted.period.label}:{wanted.reason}:{due}:after-{earlier.newest}",
        partition_key=wanted.period.partition_key,
        tags={
            **period_tag(digest, wanted.period),
            FOLLOW_UP_TAG: wanted.reason,
            FOLLOW_UP_AT_TAG: now.isoformat(),
        },
        asset_selection=None if whole else [asset_key(digest, name) for name in wanted.assets],
        asset_check_keys=None if wanted.checks is None else list(wanted.checks),
    )


def active_run(instance: dg.DagsterInstance, digest: Digest, period: Period) -> dg.DagsterRun | None:
    """Return a run of the period that is queued or in progress, whoever started it.

    Runs of the UI and of backfills carry no tag of ours: their partition and job or assets tell.
    """
    filters = dg.RunsFilter(tags={PARTITION_TAG: period.partition_key}, statuses=ACTIVE)
    for run in instance.get_runs(filters):
        assets = run.asset_selection or ()
        if (
            run.tags.items() >= period_tag(digest, period).items()
            or run.job_name == job_name(digest)
            or any(key.path[0] == digest.name for key in assets)
        ):
            return run
    return None


def earlier_runs(instance: dg.DagsterInstance, digest: Digest, period: Period, reason: str) -> Earlier:
    """Return the runs that sensors started for this reason in this period."""
    filters = dg.RunsFilter(tags={**period_tag(digest, period), FOLLOW_UP_TAG: reason})
    runs = instance.get_runs(filters, limit=_LOOKED_AT)
    instants = [at for run in runs if (at := _instant(run.tags.get(FOLLOW_UP_AT_TAG, ""))) is not None]
    return Earlier(tuple(instants), runs[0].run_id if runs else "none")


def _instant(text: str) -> datetime | None:
    try:
        return as_instant(text)
    except ValueError:
        return None
