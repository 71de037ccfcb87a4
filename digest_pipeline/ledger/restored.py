"""A ledger that was restored from a backup: what its lost copy may have sent meanwhile is in doubt.

The backup knows nothing of the claims made after it. So every manifest that the lost copy could have sent
is marked; what waits in it becomes unknown before anything of it is claimed, as if a sender had died with
all of it in hand; and manifests made later for periods that had opened by then are marked as they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select, update

from digest_pipeline.ledger import attempts, transitions
from digest_pipeline.ledger.attempts import Attempt
from digest_pipeline.ledger.dialects import ledger_now, next_tokens
from digest_pipeline.ledger.schema import delivery, ledger_identity, manifest
from digest_pipeline.ledger.windows import is_out_of_doubt
from digest_pipeline.outcomes import FailureClass, Stage
from digest_pipeline.states import CLAIMABLE, State

_d = delivery.c
PAGE = 5_000
RESTORED = "restored"
"""How the attempt ends that a lost copy may have made."""


def mark(conn: Connection, since: int) -> int:
    """Remember that a lost copy may have sent from ``since`` until now; return how many manifests that marks.

    All whose window has opened, closed ones too: the lost copy may have been allowed to send late.
    """
    conn.execute(update(ledger_identity).values(restored_from_at=since, restored_at=ledger_now()))
    return conn.execute(
        update(manifest)
        .where(manifest.c.window_opens_at <= ledger_now())
        .values(in_doubt_from_at=since, doubted_at=None)
    ).rowcount


def doubt_for_new(conn: Connection, window_opens_at: int) -> int | None:
    """Return from when a manifest that is made now is in doubt; None for one that could not be sent then."""
    query = select(ledger_identity.c.restored_from_at).where(ledger_identity.c.restored_at > window_opens_at)
    return conn.execute(query).scalar_one_or_none()


def settle_doubt(conn: Connection, manifest_ids: Sequence[int], gateway: str, account: str) -> int:
    """Make what waits in marked manifests unknown; return how many deliveries.

    What was never claimed in this copy is taken to have been sent by this gateway and account. What was
    unknown already stays so and loses the absences counted so far: the lost copy may have sent it again.
    Nothing is done to a manifest whose content is not sealed: nobody can have sent from it here.
    """
    doubted = 0
    marked = select(manifest.c.id, manifest.c.in_doubt_from_at).where(
        manifest.c.id.in_(manifest_ids), ~is_out_of_doubt(), manifest.c.content_sealed_at.is_not(None)
    )
    for manifest_id, since in conn.execute(marked).all():
        after = 0
        while rows := _waiting(conn, manifest_id, after):
            doubted += len(_doubt(conn, rows, since, gateway, account))
            after = rows[-1].ordinal
        conn.execute(update(manifest).where(manifest.c.id == manifest_id).values(doubted_at=ledger_now()))
    return doubted


def _waiting(conn: Connection, manifest_id: int, after: int) -> Sequence[Row[Any]]:
    query = select(_d.manifest_id, _d.ordinal, _d.gateway, _d.account).where(
        _d.manifest_id == manifest_id,
        _d.ordinal > after,
        or_(_d.state.in_(sorted(CLAIMABLE)), and_(_d.ambiguous_at.is_not(None), _d.state == State.UNKNOWN)),
    )
    return conn.execute(query.order_by(_d.ordinal).limit(PAGE)).all()


def _doubt(conn: Connection, rows: Sequence[Row[Any]], since: int, gateway: str, account: str) -> set[int]:
    tokens = next_tokens(conn, len(rows))
    wanted = [
        {
            "manifest_id": row.manifest_id,
            "ordinal": row.ordinal,
            "new_token": token,
            "since": since,
            "gateway": row.gateway or gateway,
            "account": row.account or account,
        }
        for row, token in zip(rows, tokens, strict=True)
    ]
    moved = transitions.doubt(conn, wanted)
    now = conn.execute(select(ledger_now())).scalar_one()
    attempts.record(conn, [_attempt(one, now) for one in wanted if one["new_token"] in moved])
    return moved


def _attempt(row: dict[str, Any], now: int) -> Attempt:
    return Attempt(
        token=row["new_token"],
        manifest_id=row["manifest_id"],
        ordinal=row["ordinal"],
        claimed_by=RESTORED,
        gateway=row["gateway"],
        account=row["account"],
        claimed_at=now,
        stage=Stage.ON_WIRE,
        outcome=RESTORED,
        failure_class=FailureClass.AMBIGUOUS,
        charged=False,
        detail="the ledger was restored: a lost copy may have sent this",
    )
