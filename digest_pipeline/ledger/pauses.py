"""What is paused: no new claim is made of it. What is under way ends as it ends."""

from __future__ import annotations

from sqlalchemy import Connection, Row, and_, or_, select

from digest_pipeline.ledger.dialects import insert_new, ledger_now
from digest_pipeline.ledger.schema import pause


def add(conn: Connection, kind: str, name: str) -> bool:
    """Pause a ``digest``, a ``tenant`` (digest/tenant) or a ``gateway``; False when it was already."""
    now = conn.execute(select(ledger_now())).scalar_one()
    return insert_new(conn, pause, {"kind": kind, "name": name, "since_at": now})


def remove(conn: Connection, kind: str, name: str) -> bool:
    """End a pause; False when there was none."""
    where = and_(pause.c.kind == kind, pause.c.name == name)
    return conn.execute(pause.delete().where(where)).rowcount > 0


def covers(conn: Connection, digest: str, tenant: str, gateway: str) -> bool:
    """Whether a digest, this tenant of it, or the gateway that it goes through, is paused."""
    own = or_(
        and_(pause.c.kind == "digest", pause.c.name == digest),
        and_(pause.c.kind == "tenant", pause.c.name == f"{digest}/{tenant}"),
        and_(pause.c.kind == "gateway", pause.c.name == gateway),
    )
    return conn.execute(select(pause.c.name).where(own)).first() is not None


def everything(conn: Connection) -> list[Row[tuple[str, str, int]]]:
    """Return every pause: kind, name, since when."""
    return list(conn.execute(select(pause.c.kind, pause.c.name, pause.c.since_at).order_by(pause.c.name)))
