"""A Dagster instance on the ledger's PostgreSQL database, in a schema apart: for ``digest dev --postgres``.

A deployment writes its own, from deploy/dagster.yaml.
"""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from digest_pipeline.defs.run import INSTANCE_FILE, RUN_LIMITS
from digest_pipeline.errors import InputError
from digest_pipeline.ledger import schema

SCHEMA = "digest_dagster"
"""Where Dagster's tables go. The ledger's are in the database's default schema."""
URL_VARIABLE = "DAGSTER_POSTGRES_URL"
# One of Dagster's tables, made with its first: other tables without it are not Dagster's.
_DAGSTERS = "event_logs"

INSTANCE = f"""\
# Written by `digest dev --postgres` and never again: change it as you like.
storage:
  postgres:
    # In the schema {SCHEMA} of the ledger's database, set by the command that starts Dagster.
    postgres_url:
      env: {URL_VARIABLE}
{RUN_LIMITS}"""


def postgres_place(text_url: str) -> URL:
    """Return the database a person names. Raises InputError for anything but PostgreSQL."""
    try:
        url = make_url(text_url)
        known = url.get_backend_name() == "postgresql" and url.database
    except (ArgumentError, ValueError):
        known = False
    if not known:
        # Not repeated: it may hold a password.
        raise InputError("--postgres takes the URL of a database, as in postgresql://user@host/database")
    return make_url(text_url)


def require_free(url: URL) -> None:
    """Raise InputError where an instance of its own cannot be used. Writes nothing.

    That is: the environment names another instance or another ledger, or Dagster's schema holds tables
    that are not Dagster's.
    """
    if os.environ.get("DAGSTER_HOME"):
        raise InputError("DAGSTER_HOME names an instance already; unset it, or leave --postgres out")
    if (ledger := os.environ.get("DIGEST_LEDGER_URL")) and ledger not in _spellings(url):
        raise InputError("DIGEST_LEDGER_URL names another ledger; unset it, or leave --postgres out")
    engine = _engine(url)
    with engine.connect() as conn:
        present = set(inspect(conn).get_table_names(schema=SCHEMA))
    engine.dispose()
    if present and _DAGSTERS not in present:
        what = "a ledger" if present & set(schema.metadata.tables) else "tables that are not Dagster's"
        raise InputError(
            f"the schema {SCHEMA} of this database holds {what}: name another database, or rename that schema"
        )


def use_postgres_instance(home: Path, url: URL) -> Path:
    """Point this process and its children at an instance of its own, and return its folder.

    The schema and the instance's file are made on first use; a file that is there stays as it is.
    """
    engine = _engine(url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    engine.dispose()
    folder = home / "dagster-postgres"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / INSTANCE_FILE
    if not file.exists():
        file.write_text(INSTANCE, encoding="utf-8")
    os.environ["DAGSTER_HOME"] = str(folder)
    os.environ[URL_VARIABLE] = _dagsters(url).render_as_string(hide_password=False)
    return folder


def _dagsters(url: URL) -> URL:
    given = url.query.get("options", "")
    options = f"{given if isinstance(given, str) else ' '.join(given)} -csearch_path={SCHEMA}".strip()
    # psycopg2, which dagster-postgres brings, is what plain `postgresql` means.
    return url.set(drivername="postgresql").update_query_dict({"options": options})


def _engine(url: URL) -> Engine:
    return create_engine(url.set(drivername="postgresql+psycopg"), poolclass=NullPool, hide_parameters=True)


def _spellings(url: URL) -> set[str]:
    drivers = ("postgresql", "postgresql+psycopg")
    return {url.set(drivername=driver).render_as_string(hide_password=False) for driver in drivers}
