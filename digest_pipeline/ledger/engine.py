"""Opening the ledger, and the two ways to use it: a read and a write transaction."""

from __future__ import annotations

import math
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url, pool
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from digest_pipeline import telemetry
from digest_pipeline.errors import InputError, LedgerError
from digest_pipeline.ledger.dialects import host_microseconds, redact

T = TypeVar("T")

PING_AFTER = 1.0
"""Seconds in the pool after which a connection is checked before it is used again."""

_RETRIED_SQLSTATES = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock detected
        "55P03",  # lock not available
        "57P01",  # admin shutdown
        "57P02",  # crash shutdown
        "57P03",  # cannot connect now
        "08000",
        "08003",
        "08006",
        "25P03",  # idle in transaction
    }
)


class Ledger:
    """One ledger database. Cheap to share between threads; ``close`` it at the end.

    A write transaction is the only writer from its start on SQLite (BEGIN IMMEDIATE: a read that
    turns into a write later fails at once in WAL mode, whatever the busy time-out says), and READ
    COMMITTED with explicit row locks on PostgreSQL. Nothing here is bound to a session, so a
    transaction pooler may stand in front, if it passes the start-up options on.
    """

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.engine = _create_engine(self.url)
        self._readers = self.engine.execution_options(ledger_reads=True)
        # SQLite has one writer. Threads of this process queue here: waiting in SQLite's own busy
        # handler means sleeping up to 100 ms at a time.
        self._writer: AbstractContextManager[Any] = nullcontext() if self.is_postgresql else threading.Lock()

    @property
    def is_postgresql(self) -> bool:
        """Whether the ledger is on PostgreSQL (SQLite otherwise)."""
        return self.engine.dialect.name == "postgresql"

    def describe(self) -> str:
        """The ledger's place without credentials, for people."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads: one consistent snapshot on SQLite, per statement on PostgreSQL."""
        with self._readers.begin() as conn:
            yield conn

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A transaction that only reads, and in which every question sees the same state of the ledger."""
        with self._readers.connect() as conn:
            if self.is_postgresql:
                conn.execution_options(isolation_level="REPEATABLE READ")
            with conn.begin():
                yield conn

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes, tried once: for callers that must not repeat their work."""
        with self._writer, self.engine.begin() as conn:
            yield conn

    def transact(self, work: Callable[[Connection], T], *, patience: float = 30.0) -> T:
        """Run ``work`` in a write transaction, again after a lost connection, deadlock or busy file.

        ``work`` must be safe to run again: every transition is guarded by state and token, so a
        commit whose answer was lost is not repeated. (What a claim committed unseen is given back by the
        send loop, or becomes unknown when its lease ends.) Gives up after ``patience`` seconds, and not
        before the second try, with the database's own error.
        """
        deadline = time.monotonic() + patience
        pause = 0.02
        tries = 0
        while True:
            tries += 1
            try:
                with self._writer, self.engine.begin() as conn:
                    return work(conn)
            except DBAPIError as error:
                # A second try whatever the clock says: a process that was stopped inside a transaction finds
                # its session ended and its patience over, with results in hand that nobody else knows.
                if not _passes(error) or (tries > 1 and time.monotonic() + pause > deadline):
                    raise
                telemetry.ledger_write_again(type(error.orig).__name__)
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, 1.0)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _passes(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.OperationalError):
        return "locked" in str(error.orig) or "busy" in str(error.orig)
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        # No answer from the server at all: refused or dropped while connecting.
        return isinstance(error, OperationalError | InterfaceError)
    return state in _RETRIED_SQLSTATES


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Not chained: both can quote the URL, ValueError a part of the password taken for a port.
        raise InputError(
            "the ledger URL (DIGEST_LEDGER_URL) is not a SQLAlchemy URL; write it like "
            "sqlite:///ledger.db or postgresql+psycopg://user@host/database"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        # dagster-postgres brings psycopg2; the ledger speaks psycopg 3 (COPY, pipeline, sqlstate).
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise InputError(f"the ledger runs on SQLite or PostgreSQL, not on {backend}")
    database = parsed.database or ":memory:"
    if ":memory:" in database or parsed.query.get("mode") == "memory":
        raise InputError("the ledger must be a file: an in-memory database would forget what was sent")
    return parsed


def _create_engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return _postgresql(url)
    assert url.database is not None
    folder = Path(url.database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"the ledger's folder {folder} cannot be made ({error.strerror})") from error
    # The pool keeps at most a few connections: writers wait for each other anyway.
    engine = create_engine(
        url,
        poolclass=pool.QueuePool,
        pool_size=4,
        hide_parameters=True,  # an error text must not quote an address
        connect_args={"timeout": 30},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql(url: URL) -> Engine:
    # READ COMMITTED is what SKIP LOCKED and guarded updates are designed for; synchronous_commit is
    # set here because a claim that a crash can undo is a second mail.
    # Behind what the URL asks for, such as a search path, which it would replace otherwise.
    asked = url.query.get("options", "")
    options = (
        f"{asked if isinstance(asked, str) else ' '.join(asked)} "
        "-c synchronous_commit=on -c default_transaction_isolation=read\\ committed "
        # A process that was stopped inside a transaction would hold its locks for ever.
        "-c idle_in_transaction_session_timeout=120s"
    )
    engine = create_engine(
        url,
        pool_size=8,
        max_overflow=8,
        hide_parameters=True,
        connect_args={
            "options": options,
            "application_name": "digest_pipeline",
            "connect_timeout": 10,
            # A transaction pooler hands statements of one client to many servers.
            "prepare_threshold": None,
        },
    )
    event.listen(engine, "handle_error", _redact)
    event.listen(engine, "checkin", _note_idleness)
    event.listen(engine, "checkout", partial(_ping_if_idle, engine))
    return engine


def _note_idleness(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info["idle_since"] = time.monotonic()


def _ping_if_idle(
    engine: Engine, connection: Any, record: ConnectionPoolEntry, _proxy: PoolProxiedConnection
) -> None:
    # SQLAlchemy's own pre-ping is a round trip before each of the many transactions of a send loop.
    if time.monotonic() - record.info.get("idle_since", math.inf) < PING_AFTER:
        return
    try:
        engine.dialect.do_ping(connection)
    except psycopg.Error as error:
        raise DisconnectionError("the connection was lost while idle") from error


def _redact(context: ExceptionContext) -> None:
    redact(context.original_exception)
    if context.sqlalchemy_exception is not None and isinstance(context.original_exception, psycopg.Error):
        # Its text was made from the driver's before anybody could redact that.
        original = context.original_exception
        context.sqlalchemy_exception.args = (f"({type(original).__name__}) {original}",)


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    connection.create_function("ledger_now", 0, host_microseconds)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a claim must survive a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA busy_timeout = 30000")


def _begin_sqlite(conn: Connection) -> None:
    reads = conn.get_execution_options().get("ledger_reads")
    conn.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
