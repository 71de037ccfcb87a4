"""The retention rule: how long generated rows of deliveries that were not sent are kept.

The only other way, beside a definitive send, for generated rows to leave. Every removal is recorded
on its delivery as ``retention:<state>``, which is what the check exempts.
"""

from __future__ import annotations

from sqlalchemy import Connection

from digest_pipeline.ledger import audit, reads
from digest_pipeline.ledger import retention as rows
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.spec import Digest, Retention
from digest_pipeline.states import State

MICROS_PER_DAY = 86_400_000_000


def kept_for(retention: Retention) -> dict[State, int]:
    """Return how long the rows of each state stay, in microseconds after it was reached."""
    days = {
        State.FAILED: retention.failed_days,
        State.DEAD: retention.dead_days,
        State.SUPPRESSED: retention.suppressed_days,
        State.WRITTEN_OFF: retention.written_off_days,
    }
    return {state: int(value * MICROS_PER_DAY) for state, value in days.items()}


def apply_retention(ledger: Ledger, digest: Digest, manifest_ids: tuple[int, ...]) -> dict[str, int]:
    """Write off unknowns, end what was never tried, remove rows past their retention; return counts.

    An ending is never silent: how many the rule wrote off or ended is in the audit trail, as the rule's
    doing and in the transaction that has the effect. Their generated rows stay for the days that
    ``retention`` gives their new state.
    """
    unknown = int(digest.retention.unknown_days * MICROS_PER_DAY)
    pending = int(digest.retention.pending_days * MICROS_PER_DAY)
    done: dict[str, int] = {}

    def work(conn: Connection) -> None:
        done.clear()
        for manifest_id in manifest_ids:
            ended = {
                "written_off": rows.write_off_old(conn, manifest_id, unknown),
                "closed": rows.close_old(conn, manifest_id, pending),
            }
            _audit(conn, digest, manifest_id, ended)
            for what, count in ended.items():
                if count:
                    done[what] = done.get(what, 0) + count
            for state, age in kept_for(digest.retention).items():
                removed = rows.remove_old(conn, manifest_id, state, age)
                if removed:
                    done[f"removed_{state}"] = done.get(f"removed_{state}", 0) + removed

    ledger.transact(work)
    return done


def _audit(conn: Connection, digest: Digest, manifest_id: int, ended: dict[str, int]) -> None:
    effect = {what: count for what, count in ended.items() if count}
    if effect:
        (header,) = reads.headers(conn, [manifest_id])
        rule = f"unknown for {digest.retention.unknown_days:g} days, or never tried for "
        rule += f"{digest.retention.pending_days:g} after the window"
        action = Action("retention", "retention rule", rule, header.digest, header.period, header.tenant)
        audit.record(conn, action, effect)
