"""The demo's customer database: real purchases, invented people, two tables."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from importlib.resources import files
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from digest_pipeline.demo.population import Person, person
from digest_pipeline.errors import SourceError

VERSION = 1
"""Raised with every change of the tables or the population, so that an older copy is rebuilt."""

ACTIVE_FOR = timedelta(weeks=25)
"""How long a purchase keeps its customer in the mailing, beside the week it fell in."""

_BATCH = 5000
_TABLES = sa.MetaData()

CUSTOMERS = sa.Table(
    "customers",
    _TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("email", sa.Text),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("opted_in", sa.Boolean, nullable=False),
    sa.Column("joined", sa.Date, nullable=False, comment="day of the first purchase"),
)
ORDERS = sa.Table(
    "orders",
    _TABLES,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False, comment="row of the data set"),
    sa.Column("customer_id", sa.Text, sa.ForeignKey(CUSTOMERS.c.id), nullable=False),
    sa.Column("ordered_on", sa.Date, nullable=False),
    sa.Column("cds", sa.Integer, nullable=False),
    sa.Column("cents", sa.Integer, nullable=False),
    # SQLite and PostgreSQL share no arithmetic on dates, so the query compares with a stored one.
    sa.Column("active_until", sa.Date, nullable=False, comment="ordered_on and 25 weeks"),
    sa.Index("orders_of_customer", "customer_id", "ordered_on"),
)
_MARKER = sa.Table(
    "demo_source",
    _TABLES,
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("seed", sa.Integer, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
)


@dataclass(slots=True)
class SourceSummary:
    """What the demo database holds: counts of customers by what is special about them, and orders."""

    customers: int = 0
    orders: int = 0
    opted_out: int = 0
    malformed: int = 0
    shared_address: int = 0
    beyond_ascii: int = 0

    def add(self, someone: Person) -> None:
        """Count one customer."""
        self.customers += 1
        self.opted_out += not someone.opted_in
        self.malformed += bool(someone.malformed)
        self.shared_address += bool(someone.shares_with)
        self.beyond_ascii += someone.beyond_ascii


def load_source(url: str, *, seed: int = 1997) -> SourceSummary:
    """Create the demo's tables at a database URL (SQLite or PostgreSQL), unless they are complete.

    All of it is one transaction, so nobody sees half a source; two loaders wait for each other.
    Raises SourceError when the database can't be used, or has tables of these names that the demo
    didn't make: it never drops somebody's customers.
    """
    try:
        with _writing(url) as conn:
            return _existing(conn, seed) or _build(conn, seed)
    except (SQLAlchemyError, psycopg.Error) as error:
        raise SourceError(f"the demo source cannot be loaded ({type(error).__name__})") from error


def _existing(conn: sa.Connection, seed: int) -> SourceSummary | None:
    present = set(sa.inspect(conn).get_table_names()) & set(_TABLES.tables)
    if not present:
        return None
    if _MARKER.name not in present:
        raise SourceError(
            f"the database already has {', '.join(sorted(present))}, not made by the demo; name an empty one"
        )
    if present == set(_TABLES.tables):
        found = conn.execute(sa.select(_MARKER.c.summary).filter_by(version=VERSION, seed=seed)).scalar()
        summary = SourceSummary(**json.loads(found)) if found else None
        if summary and (summary.customers, summary.orders) == (_rows(conn, CUSTOMERS), _rows(conn, ORDERS)):
            return summary
    _TABLES.drop_all(conn)
    return None


def _build(conn: sa.Connection, seed: int) -> SourceSummary:
    summary = SourceSummary()
    _TABLES.create_all(conn)
    _insert(conn, CUSTOMERS, _customers(seed, summary))
    _insert(conn, ORDERS, _orders(summary))
    conn.execute(_MARKER.insert().values(version=VERSION, seed=seed, summary=json.dumps(asdict(summary))))
    conn.exec_driver_sql("ANALYZE")  # the first digest must not wait for autovacuum to find good plans
    return summary


def _customers(seed: int, summary: SourceSummary) -> Iterator[dict[str, Any]]:
    for number, purchases in groupby(_purchases(), key=itemgetter("customer")):
        someone = person(seed, int(number))
        summary.add(someone)
        yield {
            "id": someone.customer_id,
            "email": someone.email,
            "name": someone.name,
            "opted_in": someone.opted_in,
            "joined": min(date.fromisoformat(purchase["date"]) for purchase in purchases),
        }


def _orders(summary: SourceSummary) -> Iterator[dict[str, Any]]:
    for row, purchase in enumerate(_purchases(), start=1):
        summary.orders = row
        day = date.fromisoformat(purchase["date"])
        yield {
            "id": row,
            "customer_id": f"cdnow-{purchase['customer']}",
            "ordered_on": day,
            "cds": int(purchase["cds"]),
            "cents": int(purchase["dollars"].replace(".", "")),
            "active_until": day + ACTIVE_FOR,
        }


def _purchases() -> Iterator[dict[str, str]]:
    packed = files("digest_pipeline") / "demo" / "data" / "cdnow.csv.gz"
    with packed.open("rb") as file, gzip.open(file, "rt", encoding="ascii", newline="") as lines:
        yield from csv.DictReader(lines)


def _insert(conn: sa.Connection, table: sa.Table, rows: Iterator[dict[str, Any]]) -> None:
    if conn.dialect.name == "postgresql":
        # A tenth of the time of INSERT; the same transaction.
        driver: psycopg.Connection = conn.connection.driver_connection  # type: ignore[assignment]
        copy_into = f"COPY {table.name} ({', '.join(column.name for column in table.columns)}) FROM STDIN"
        with driver.cursor() as cursor, cursor.copy(copy_into.encode()) as copy:
            for row in rows:
                copy.write_row([row[column.name] for column in table.columns])
        return
    while batch := list(islice(rows, _BATCH)):
        conn.execute(table.insert(), batch)


def _rows(conn: sa.Connection, table: sa.Table) -> int:
    return conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


@contextmanager
def _writing(url: str) -> Iterator[sa.Connection]:
    place = sa.make_url(url)
    if place.get_backend_name() not in ("sqlite", "postgresql"):
        raise SourceError("the demo source lives at sqlite:///FILE or postgresql://HOST/DATABASE")
    if place.get_backend_name() == "postgresql":
        place = place.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(place, poolclass=sa.NullPool, hide_parameters=True)
    if place.get_backend_name() == "sqlite":
        if place.database and place.database != ":memory:":
            Path(place.database).parent.mkdir(parents=True, exist_ok=True)
        _take_over_transactions(engine)
    try:
        with engine.begin() as conn:
            if engine.dialect.name == "postgresql":
                # CREATE TABLE IF NOT EXISTS fails when two sessions meet; the lock ends with the transaction.
                conn.execute(sa.select(sa.func.pg_advisory_xact_lock(1997, 1)))
            yield conn
    finally:
        engine.dispose()


def _take_over_transactions(engine: sa.Engine) -> None:
    # sqlite3 begins no transaction before DDL, so a failed build would leave empty tables behind.
    @sa.event.listens_for(engine, "connect")
    def _no_implicit_begin(dbapi: Any, _record: object) -> None:
        dbapi.isolation_level = None
        dbapi.execute("PRAGMA busy_timeout = 30000")

    @sa.event.listens_for(engine, "begin")
    def _begin(conn: sa.Connection) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE")
