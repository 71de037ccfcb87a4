"""Fixtures that give each test a database of its own on a real engine. None of them ever skips."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from digest_pipeline.lab.postgres import PostgresServer, running_postgres

Engine = Literal["sqlite", "postgresql"]
ENGINES: tuple[Engine, ...] = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for the session; with pytest-xdist one for each worker, so workers share nothing."""
    # Without a server this raises, and every test that asked for one errors with what was tried.
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database, dropped afterwards, as `postgresql+psycopg://...`."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that does not exist yet, in the test's own folder."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(params=ENGINES)
def ledger_url(request: pytest.FixtureRequest) -> str:
    """An empty database on each engine in turn: a test that asks for this one runs twice."""
    # Asked for by name, so that a SQLite run of one test starts no server.
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url
