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


def covering(conn: Connection, digest: str, tenant: str, gateway: str) -> list[tuple[str, str]]:
    """Return the pauses, kind and name, of a digest, this tenant of it, and the gateway that it goes through."""
    own = or_(
        and_(pause.c.kind == "digest", pause.c.name == digest),
        and_(pause.c.kind == "tenant", pause.c.name == f"{digest}/{tenant}"),
        and_(pause.c.kind == "gateway", pause.c.name == gateway),
    )
    return [(row.kind, row.name) for row in conn.execute(select(pause).where(own).order_by(pause.c.kind))]


def gateway_is_paused(conn: Connection, gateway: str) -> bool:
    """Whether nothing may go through a gateway now, whatever digest it is of."""
    query = select(pause.c.name).where(pause.c.kind == "gateway", pause.c.name == gateway)
    return conn.execute(query).first() is not None


def everything(conn: Connection) -> list[Row[tuple[str, str, int]]]:
    """Return every pause: kind, name, since when."""
    return list(conn.execute(select(pause.c.kind, pause.c.name, pause.c.since_at).order_by(pause.c.name)))
