"""Reading the customer database: one snapshot, streamed, in bounded memory.

Any SQLAlchemy URL, usually not the ledger's database. Nothing is ever written to it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy import Connection, Date, DateTime, Engine, bindparam, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.types import NullType, TypeEngine

from digest_pipeline.errors import InputError, SourceError
from digest_pipeline.periods import Period
from digest_pipeline.spec import Query

ROWS_AT_ONCE = 5_000
REQUIRED = ("customer_id", "recipient")
_SNAPSHOTS = {"postgresql": "REPEATABLE READ", "mysql": "REPEATABLE READ", "mariadb": "REPEATABLE READ"}


class Source:
    """The customer database of one digest."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Open one transaction in which every query sees the same rows. Raises SourceError.

        What else fails inside the block, a write to the ledger for one, stays what it is.
        """
        with _explained():
            conn = self._engine.connect()
        try:
            with _explained():
                _begin(conn)
            yield Snapshot(conn)
        finally:
            conn.close()  # rolls back: nothing was written

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Snapshot:
    """Queries against one state of the customer database."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def customers(self, query: Query, period: Period) -> Iterator[Sequence[Any]]:
        """Yield pages of rows with ``customer_id``, ``recipient`` and what else the query returns.

        Raises SourceError when a required column is missing.
        """
        statement = text(query.sql).bindparams(*_parameters(query))
        streamed = {"stream_results": True, "max_row_buffer": ROWS_AT_ONCE}
        with _explained():
            result = self._conn.execute(statement, _values(query, period), execution_options=streamed)
        missing = [name for name in REQUIRED if name not in result.keys()]  # noqa: SIM118 - not a dict
        if missing:
            raise SourceError(
                f"the customers SQL returns no column {' and no column '.join(missing)}; "
                f"it returns {', '.join(result.keys())}"
            )
        pages = result.partitions(ROWS_AT_ONCE)
        while True:
            with _explained():
                page = next(pages, None)
            if page is None:
                return
            yield page

    def content(
        self, query: Query, period: Period, tenant: str | None, customer_ids: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the content rows of a page of a tenant's customers, by customer id, in the query's order.

        Rows of other tenants are left out where the query has a ``tenant`` column; ``tenant`` None: the
        digest has one tenant only, and a column of that name is data like any other.
        """
        statement = text(
            # The query is the operator's own configuration; what varies is bound.
            f"SELECT * FROM (\n{query.sql.rstrip().rstrip(';')}\n) AS content "  # noqa: S608
            "WHERE content.customer_id IN :content_customer_ids"
        ).bindparams(
            # Untyped: the ids are text here and may be numbers there; the database decides.
            bindparam("content_customer_ids", expanding=True, type_=NullType()),
            *_parameters(query),
        )
        rows: dict[str, list[dict[str, Any]]] = {}
        values = {**_values(query, period), "content_customer_ids": list(customer_ids)}
        with _explained():
            for row in self._conn.execute(statement, values).mappings():
                if tenant is not None and row.get("tenant", tenant) is None:
                    raise SourceError("the content SQL returned a row without a tenant")
                if tenant is not None and str(row.get("tenant", tenant)) != tenant:
                    continue
                rows.setdefault(str(row["customer_id"]), []).append(dict(row))
        if strangers := rows.keys() - set(customer_ids):
            # A collation that ignores case, or 1 for 1.0: the rows' customers would look empty.
            raise SourceError(
                f"the content SQL spells {len(strangers)} customer ids otherwise than the customers SQL does"
            )
        return rows


def _parameters(query: Query) -> list[Any]:
    types: dict[str, TypeEngine[Any]] = {
        "period_start": Date(),
        "period_end": Date(),
        "period_start_at": DateTime(timezone=True),
        "period_end_at": DateTime(timezone=True),
    }
    used = text(query.sql).compile().params
    return [bindparam(name, type_=type_) for name, type_ in types.items() if name in used]


def _values(query: Query, period: Period) -> dict[str, Any]:
    values = {
        "period_start": period.first_day,
        "period_end": period.last_day + timedelta(days=1),
        "period_start_at": period.start,
        "period_end_at": period.end,
    }
    used = text(query.sql).compile().params
    return {name: value for name, value in values.items() if name in used}


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        engine = create_engine(parsed, hide_parameters=True)
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError):
        # Not chained: some of them quote the URL, or a part of its password taken for a port.
        raise InputError(
            "the customer source's URL is not one SQLAlchemy can use here (wrong form, or its driver "
            "is not installed)"
        ) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _tolerate_wrong_text)
    return engine


def _tolerate_wrong_text(connection: sqlite3.Connection, _record: Any) -> None:
    # SQLite stores any bytes as text, half a surrogate pair for one; the driver raises at such a row, and
    # a single name would keep everybody's digest from being frozen.
    connection.text_factory = lambda data: data.decode("utf-8", "replace")


def _begin(conn: Connection) -> None:
    if isolation := _SNAPSHOTS.get(conn.dialect.name):
        conn.execution_options(isolation_level=isolation)
    conn.begin()
    if conn.dialect.name == "sqlite":
        # The driver begins no transaction for reads; without one, each is a snapshot.
        conn.exec_driver_sql("BEGIN")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        # Not chained: a traceback would print the driver's text, which can quote addresses.
        raise SourceError(_explain(error)) from None


def _explain(error: SQLAlchemyError) -> str:
    # The driver's text can quote values and the URL; its class and the SQLSTATE cannot, and what it
    # says about a mistake in the SQL names tables and columns only.
    cause = getattr(error, "orig", None)
    state = getattr(cause, "sqlstate", None)
    said = ""
    if isinstance(cause, sqlite3.Error) and ("no such" in str(cause) or "syntax error" in str(cause)):
        said = str(cause)
    elif isinstance(cause, psycopg.Error) and state and state.startswith("42"):
        said = cause.diag.message_primary or ""
    known = f"{type(error).__name__}{f', SQLSTATE {state}' if state else ''}{f': {said}' if said else ''}"
    return f"the customer source could not be read ({known})"
