"""The servers of a deployment on several machines: broker, PostgreSQL and provider, reached by TCP alone."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import matplotlib
import psycopg
import yaml
from psycopg import sql
from sqlalchemy import create_engine, make_url, text

from digest_pipeline.defs.executors import BACKEND_VARIABLE, BROKER_VARIABLE
from digest_pipeline.lab.postgres import URL_VARIABLE, PostgresServer, running_postgres
from digest_pipeline.spec_loading import load_file
from digest_pipeline_tests.harness.celery import Cluster
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT, migrated
from digest_pipeline_tests.harness.network import HUB, Network
from digest_pipeline_tests.harness.redis import broker
from digest_pipeline_tests.harness.rim import write_spec
from digest_pipeline_tests.harness.sandbox import API_KEY, running_sandbox


@contextmanager
def cluster(folder: Path, network: Network, digests: Mapping[str, Mapping[str, Any]]) -> Iterator[Cluster]:
    """Start the servers of a deployment in the network's hub: broker, databases, provider. No worker yet.

    ``digests``: tiny ones by name, with what is changed in each.
    """
    with ExitStack() as stack:
        with network.inside():
            server = stack.enter_context(_reachable_postgres())
            sandbox = stack.enter_context(running_sandbox(folder, host=HUB, latency_ms=50))
        redis = stack.enter_context(broker(network, folder))
        password = _let_machines_in(server)
        urls = {name: stack.enter_context(server.database()) for name in ("ledger", "storage", "customers")}
        far = {name: _by_tcp(url, password) for name, url in urls.items()}
        specs = _folder(folder / "specs")
        source = {"env": "DIGEST_SOURCE_URL", "default": ...}
        loaded = {
            name: load_file(write_spec(specs, name=name, source=source, **changed))
            for name, changed in digests.items()
        }
        yield Cluster(
            network,
            sandbox,
            stack.enter_context(migrated(urls["ledger"])),
            loaded,
            stack.enter_context(_instance(_folder(folder / "instance"), urls["storage"])),
            urls["customers"],
            _variables(network.disk, far, redis, sandbox.url),
            specs,
        )


def write_customers(source_url: str, customers: int, days: Iterable[str]) -> None:
    """Write the tiny source's tables into a PostgreSQL database: everybody has an order on each of the days."""
    engine = create_engine(source_url)
    with engine.begin() as conn:
        for statement in _SOURCE_TABLES:
            conn.execute(text(statement))
        conn.execute(text(_CUSTOMERS), {"last": customers})
        for day in days:
            conn.execute(text(_ORDERS), {"last": customers, "day": day})
    engine.dispose()


_SOURCE_TABLES = (
    "CREATE TABLE customers (position int, id text, email text, name text, opted_in int, tenant text)",
    "CREATE TABLE orders (id serial, customer_id text, ordered_on date, item text, hidden int)",
)
_CUSTOMERS = """
INSERT INTO customers
SELECT n, 'customer-' || n, 'reader-' || n || '@example.test', 'Reader ' || n, 1, 'acme'
FROM generate_series(1, :last) AS n
"""
_ORDERS = """
INSERT INTO orders (customer_id, ordered_on, item, hidden)
SELECT 'customer-' || n, CAST(:day AS date), 'thing of ' || n, 0 FROM generate_series(1, :last) AS n
"""


@contextmanager
def _reachable_postgres() -> Iterator[PostgresServer]:
    # One that runs already does not listen in the hub, so it is never used here.
    given = os.environ.pop(URL_VARIABLE, None)
    try:
        with running_postgres(settings={"listen_addresses": HUB}) as server:
            yield server
    finally:
        if given is not None:
            os.environ[URL_VARIABLE] = given


def _let_machines_in(server: PostgresServer) -> str:
    """Let machines log in by TCP with a password, and return it."""
    password = secrets.token_hex(16)
    dsn = server.admin_url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("SHOW hba_file").fetchone()
        assert row is not None
        with Path(row[0]).open("a", encoding="utf-8") as file:
            file.write("host all all 10.0.0.0/8 scram-sha-256\n")
        conn.execute("SELECT pg_reload_conf()")
        conn.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(
                sql.Identifier(str(server.admin_url.username)), sql.Literal(password)
            )
        )
    return password


def _by_tcp(url: str, password: str) -> str:
    far = make_url(url).set(host=HUB, port=5432, password=password, query={})
    return far.render_as_string(hide_password=False)


def _plain(url: str) -> str:
    """Return a URL for Dagster's storage, which speaks psycopg2."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def _instance(folder: Path, storage: str) -> Iterator[dg.DagsterInstance]:
    settings = {"storage": {"postgres": {"postgres_url": _plain(storage)}}, "telemetry": {"enabled": False}}
    (folder / "dagster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        yield instance


def _variables(disk: Path, far: Mapping[str, str], redis: str, provider: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIGEST_", "DAGSTER_"))}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "HOME": str(disk),
        # Drawing the report's plots needs an index of fonts, which takes long to make: ours will do.
        "MPLCONFIGDIR": matplotlib.get_configdir(),
        "TMPDIR": str(disk / "tmp"),
        "TZ": "UTC",
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "DAGSTER_HOME": str(disk / "dagster"),
        "DAGSTER_POSTGRES_URL": _plain(far["storage"]),
        "DAGSTER_COMPUTE_LOGS": str(disk / "logs"),
        "DIGEST_HOME": str(disk / "digest"),
        "DIGEST_LEDGER_URL": far["ledger"],
        "DIGEST_SPECS": str(disk / "specs"),
        "DIGEST_ENVIRONMENT": ENVIRONMENT,
        "DIGEST_SOURCE_URL": far["customers"],
        "DIGEST_SANDBOX_URL": provider,
        "DIGEST_SANDBOX_API_KEY": API_KEY,
        "DIGEST_EXECUTOR": "celery",
        BROKER_VARIABLE: f"{redis}/0",
        BACKEND_VARIABLE: f"{redis}/1",
    }


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
