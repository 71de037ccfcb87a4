"""Bringing a ledger to this build's schema, and refusing to work on any other."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from digest_pipeline.errors import EnvironmentMismatchError, InputError, LedgerError, SchemaVersionError
from digest_pipeline.keys import KEY_VERSION
from digest_pipeline.ledger.dialects import is_postgresql, ledger_now, skip_tokens
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import ledger_identity, metadata

_MIGRATIONS = Path(__file__).parent / "migrations"
# Some managed servers keep pg_control_* from ordinary roles: insufficient privilege, no such function.
_NOT_FOR_US = ("42501", "42883")
_LOCK = 0x646967657374  # "digest": serialises two upgrades of one database
_DAGSTERS = frozenset({"daemon_heartbeats", "event_logs", "job_ticks", "run_tags"})
"""Tables by which Dagster's storage is known, each from another part of it."""


def upgrade(ledger: Ledger, environment: str) -> str:
    """Bring the schema to this build's version and return it; a no-op when it is there already.

    All of it in one transaction. Two upgrades at once: the second waits and finds nothing to do.
    A fresh ledger is bound to ``environment``. Raises SchemaVersionError for a newer build's ledger, and
    InputError for a schema that holds Dagster's tables, or tables of others by a name the ledger needs.
    """

    def migrate(conn: Connection) -> str:
        if is_postgresql(conn):
            conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        found = current_version(conn)
        _require_known(found)
        _require_own_schema(conn, found)
        command.upgrade(_config(conn), "head")
        _bind_if_new(conn, environment)
        return head_version()

    return ledger.transact(migrate)


def head_version() -> str:
    """Return the schema version this build was made for."""
    head = ScriptDirectory.from_config(_config(None)).get_current_head()
    assert head is not None
    return head


def current_version(conn: Connection) -> str | None:
    """Return the schema version of a ledger, None for an empty database."""
    context = MigrationContext.configure(conn, opts={"version_table": "ledger_version"})
    return context.get_current_revision()


def require_current(ledger: Ledger) -> None:
    """Raise unless the ledger can be reached and has this build's schema."""
    try:
        with ledger.read() as conn:
            found = current_version(conn)
    except DBAPIError as error:
        raise LedgerError(
            f"the ledger {ledger.describe()} cannot be opened; is the server up, and DIGEST_LEDGER_URL right?"
        ) from error
    head = head_version()
    if found == head:
        return
    if found is None:
        raise SchemaVersionError(f"the ledger {ledger.describe()} is empty: run 'digest db upgrade'")
    _require_known(found)
    raise SchemaVersionError(
        f"the ledger has schema {found}, this build needs {head}: run 'digest db upgrade'"
    )


def _require_known(found: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaVersionError(
            f"the ledger has schema {found}, which this build does not know: a newer build migrated it"
        )


def _require_own_schema(conn: Connection, found: str | None) -> None:
    present = set(inspect(conn).get_table_names())
    if len(present & _DAGSTERS) > 1:  # one alone may be anybody's
        # Its migrations and retention rules would run beside ours, and one restore would take both back.
        raise InputError(
            "this schema holds Dagster's own tables; the ledger may share its server, never its schema: "
            "let DIGEST_LEDGER_URL name a database of its own"
        )
    if found is None and (taken := sorted(present & set(metadata.tables))):
        raise InputError(
            f"this schema holds no ledger, but tables the ledger would need: {', '.join(taken)}; "
            "let DIGEST_LEDGER_URL name an empty database"
        )


def require_same_environment(conn: Connection, environment: str | None) -> None:
    """Raise EnvironmentMismatchError where sending could repeat another database's mail.

    That is: the ledger is bound to another environment's name, or it is a copy of a database
    (another server, another database, another file), or its keys were built another way.
    """
    row = conn.execute(select(ledger_identity)).one()
    if environment is not None and row.environment != environment:
        raise EnvironmentMismatchError(
            f"this ledger belongs to the environment {row.environment!r}, this process runs as "
            f"{environment!r} (DIGEST_ENVIRONMENT): nothing is sent. If that is meant: digest db rebind --moved"
        )
    if row.fingerprint != fingerprint(conn):
        raise EnvironmentMismatchError(
            "this ledger is a copy or was restored: another one may have sent since. Nothing is sent until "
            "'digest db rebind --restored TIME' names the backup's time, or '--moved' says that no other copy "
            "has sent or will"
        )
    if row.key_version != KEY_VERSION:
        raise EnvironmentMismatchError(
            f"this ledger's keys are of version {row.key_version}, this build makes version {KEY_VERSION}"
        )


def rebind(conn: Connection, environment: str) -> None:
    """Bind the ledger to this database and environment; its copies stop sending.

    Fencing tokens go on from beyond any that another copy has given out: a sender that was paused before a
    restore must not hold a token that is given out again after it.
    """
    skip_tokens(conn)
    conn.execute(
        ledger_identity.update().values(
            environment=environment,
            fingerprint=fingerprint(conn),
            token_epoch=ledger_identity.c.token_epoch + 1,
        )
    )


def fingerprint(conn: Connection) -> str:
    """Return what a copy of this database cannot share: server, timeline and database, or the file.

    A file's inode changes when it is copied and stays when it is moved or vacuumed.
    """
    if not is_postgresql(conn):
        file = next(row[2] for row in conn.exec_driver_sql("PRAGMA database_list") if row[1] == "main")
        return f"sqlite:{Path(file).stat().st_ino}"
    oid = conn.execute(text("SELECT oid FROM pg_database WHERE datname = current_database()")).scalar_one()
    try:
        with conn.begin_nested():
            system = conn.execute(
                text(
                    "SELECT s.system_identifier, c.timeline_id "
                    "FROM pg_control_system() AS s, pg_control_checkpoint() AS c"
                )
            ).one()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in _NOT_FOR_US:
            raise  # a lost connection makes no other database of this one
        return f"postgresql:{oid}"
    return f"postgresql:{system[0]}:{system[1]}:{oid}"


def _bind_if_new(conn: Connection, environment: str) -> None:
    if conn.execute(select(ledger_identity.c.id)).first() is None:
        conn.execute(
            insert(ledger_identity).values(
                id=1,
                environment=environment,
                fingerprint=fingerprint(conn),
                key_version=KEY_VERSION,
                created_at=ledger_now(),
            )
        )


def _config(conn: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = conn
    return config
