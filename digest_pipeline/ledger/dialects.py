"""The differences between SQLite and PostgreSQL, all of them, in one place.

Everything else in the ledger is SQLAlchemy Core that both engines run alike.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import psycopg
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    Table,
    Text,
    bindparam,
    case,
    cast,
    column,
    func,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from digest_pipeline.ledger.schema import ledger_identity

S = TypeVar("S", bound=Select[Any])
P = ParamSpec("P")
T = TypeVar("T")


def built_once(build: Callable[P, T]) -> Callable[P, T]:
    """Have a statement built once per engine and arguments behind the connection.

    Building and hashing a statement takes Python longer than the server takes to run it.
    """
    made: dict[tuple[object, ...], T] = {}

    @wraps(build)
    def statement(*args: P.args, **kwargs: P.kwargs) -> T:
        conn, *others = args
        assert isinstance(conn, Connection)
        assert not kwargs
        key = (conn.dialect.name, *others)
        if key not in made:
            made[key] = build(*args, **kwargs)
        return made[key]

    return statement


class ledger_now(FunctionElement[int]):  # noqa: N801 - reads as SQL
    """The ledger's clock, in microseconds since 1970: the one clock that leases and due times know.

    PostgreSQL's own ``clock_timestamp()``, so that a worker whose clock is wrong changes nothing.
    The host's on SQLite, which only ever has one host (``unixepoch('subsec')`` is NULL before 3.42,
    so the connection brings a function of that name).
    """

    type = BigInteger()
    inherit_cache = True


@compiles(ledger_now, "postgresql")
def _now_postgresql(element: ledger_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


@compiles(ledger_now, "sqlite")
def _now_sqlite(element: ledger_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "ledger_now()"


def host_microseconds() -> int:
    """The host's clock, in the ledger's unit."""
    return time.time_ns() // 1000


def is_postgresql(conn: Connection) -> bool:
    """Whether the connection speaks to PostgreSQL (SQLite otherwise)."""
    return conn.dialect.name == "postgresql"


def skip_locked(conn: Connection, query: S, of: Table) -> S:
    """Lock the rows a query returns, passing over those another transaction holds.

    SQLite has no row locks and needs none: BEGIN IMMEDIATE already made us the only writer.
    """
    return query.with_for_update(skip_locked=True, of=of) if is_postgresql(conn) else query


def locked(conn: Connection, query: S, of: Table | None = None) -> S:
    """Lock the rows a query returns (of one table, where it reads several), waiting for others."""
    return query.with_for_update(of=of) if is_postgresql(conn) else query


def next_tokens(conn: Connection, count: int) -> list[int]:
    """Return ``count`` fencing tokens, increasing, never returned before.

    A sequence on PostgreSQL, which no transaction waits for; a counter on SQLite, where the writer
    is alone anyway.
    """
    if count == 0:
        return []
    if is_postgresql(conn):
        rows = conn.execute(
            text("SELECT nextval('delivery_token') FROM generate_series(1, :count)"), {"count": count}
        )
        return sorted(rows.scalars())
    last = conn.execute(
        update(ledger_identity)
        .values(last_token=ledger_identity.c.last_token + count)
        .returning(ledger_identity.c.last_token)
    ).scalar_one()
    return list(range(last - count + 1, last + 1))


def skip_tokens(conn: Connection) -> None:
    """Let the next fencing tokens be greater than any that a copy of this ledger ever gave out.

    They go on from the clock's microseconds: no ledger claims a million rows a second, so none has come
    as far as its clock.
    """
    if is_postgresql(conn):
        conn.execute(
            text("SELECT setval('delivery_token', greatest(nextval('delivery_token'), :now))"),
            {"now": conn.execute(select(ledger_now())).scalar_one()},
        )
        return
    now = case(
        (ledger_identity.c.last_token < ledger_now(), ledger_now()), else_=ledger_identity.c.last_token
    )
    conn.execute(update(ledger_identity).values(last_token=now))


def token_by_ordinal(conn: Connection, ordinal: ColumnElement[int]) -> ColumnElement[int]:
    """Return a fencing token for each row of an UPDATE of one manifest, told apart by ordinal.

    ``keep_tokens`` must follow in the same transaction.
    """
    if is_postgresql(conn):
        return func.nextval("delivery_token")
    return select(ledger_identity.c.last_token).scalar_subquery() + ordinal


def keep_tokens(conn: Connection, most: int) -> None:
    """Keep the tokens of ``token_by_ordinal`` from being given out again; ``most``: the greatest ordinal."""
    if not is_postgresql(conn):
        next_tokens(conn, most)


def with_tokens(conn: Connection, query: Select[Any]) -> Select[Any]:
    """Have a query bring a fencing token with each row, as ``token``, where that saves a round trip."""
    return query.add_columns(func.nextval("delivery_token").label("token")) if is_postgresql(conn) else query


def tokens_for(conn: Connection, rows: Sequence[Row[Any]]) -> list[int]:
    """Return a fencing token for each row of a query that ``with_tokens`` has seen."""
    return [row.token for row in rows] if is_postgresql(conn) else next_tokens(conn, len(rows))


def refresh_statistics(conn: Connection, *tables: Table) -> None:
    """Tell PostgreSQL's planner about rows just written; SQLite plans the same without.

    Until autovacuum comes by, it takes a table of a million rows for an empty one, and reads and sorts
    the whole backlog for every claim. A role that owns no tables gets a warning and no statistics.
    """
    if is_postgresql(conn):
        conn.exec_driver_sql(f"ANALYZE {', '.join(table.name for table in tables)}")


def rowset(conn: Connection, name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """Return rows bound as one JSON parameter called ``name``, as a table with ``columns``.

    One parameter and one plan however many rows there are: a VALUES list would be compiled anew for
    every length. Bind it with ``rowset_value``.
    """
    parameter = bindparam(name, type_=Text())
    if is_postgresql(conn):
        described = [column(key, type_) for key, type_ in columns.items()]
        return (
            func.json_to_recordset(cast(parameter, JSON))
            .table_valued(*described, name=name)
            .render_derived(with_types=True)
        )
    each = func.json_each(parameter).table_valued("value", name=f"{name}_each")
    fields = [
        type_coerce(func.json_extract(each.c.value, f"$.{key}"), type_).label(key)
        for key, type_ in columns.items()
    ]
    return select(*fields).subquery(name)


def rowset_value(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the value to bind for a ``rowset``."""
    return json.dumps(list(rows), ensure_ascii=True, separators=(",", ":"))


def bulk_insert(
    conn: Connection, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Insert many rows in one round trip: COPY on PostgreSQL, one prepared statement on SQLite.

    Raises sqlalchemy.exc.IntegrityError when a constraint refuses one; none is inserted then if the
    caller runs it in a savepoint.
    """
    if not rows:
        return
    names = ", ".join(columns)
    if is_postgresql(conn):
        _copy(conn, f"COPY {table.name} ({names}) FROM STDIN", rows)
        return
    marks = ", ".join("?" for _ in columns)
    statement = f"INSERT INTO {table.name} ({names}) VALUES ({marks})"  # noqa: S608 - our own names
    conn.exec_driver_sql(statement, list(map(tuple, rows)))


def insert_new(conn: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert one row unless a unique key of it exists already; return whether it was inserted.

    Beside another transaction that inserts the same key it waits for that one's end, and then finds
    the row, or inserts its own.
    """
    dialect_insert = postgresql.insert if is_postgresql(conn) else sqlite.insert
    statement = dialect_insert(table).values(values).on_conflict_do_nothing()
    return conn.execute(statement.returning(*table.primary_key)).first() is not None


def _copy(conn: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    driver = conn.connection.driver_connection
    assert driver is not None
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        # SQLAlchemy translates only what it executes itself; without this, no write would be retried.
        # SQLAlchemy's protocol for driver errors is wider than psycopg's own classes.
        lost = conn.dialect.is_disconnect(error, conn.connection.dbapi_connection, None)  # type: ignore[arg-type]
        redact(error)
        if lost:
            conn.invalidate()
        raise DBAPIError.instance(
            statement, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=lost
        ) from None


def redact(error: BaseException) -> None:
    """Take stored values out of a PostgreSQL error's text: DETAIL and CONTEXT quote whole rows.

    What names the problem stays: class, SQLSTATE, constraint, and for mistakes in the SQL the message.
    """
    if not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return
    known = [f"SQLSTATE {error.sqlstate}"]
    if error.diag.constraint_name:
        known.append(f"constraint {error.diag.constraint_name}")
    if error.sqlstate.startswith("42") and error.diag.message_primary:
        known.append(error.diag.message_primary)
    error.args = (", ".join(known),)
