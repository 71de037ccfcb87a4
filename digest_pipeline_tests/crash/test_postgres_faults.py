"""What the harness does to a PostgreSQL server really happens."""

import psycopg
import pytest

from digest_pipeline.lab import postgres
from digest_pipeline.lab.postgres import PostgresUnavailableError, running_postgres

pytestmark = pytest.mark.postgresql


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("postgresql+psycopg", "postgresql"))


def test_a_restart_in_immediate_mode_keeps_what_was_committed_and_ends_every_session(monkeypatch):
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)
    with running_postgres() as server, server.database() as url:
        with connect(url) as conn:
            conn.execute("CREATE TABLE mark (id int)")
            conn.commit()
            conn.execute("INSERT INTO mark VALUES (1)")
            server.crash_and_restart()
            with pytest.raises(psycopg.OperationalError):
                conn.execute("SELECT 1")
            conn.close()
        with connect(url) as conn:
            assert conn.execute("SELECT count(*) FROM mark").fetchone() == (0,)


def test_only_sessions_that_sit_in_a_transaction_are_ended_when_asked(postgres_server):
    with postgres_server.database() as url:
        with connect(url) as idle, connect(url) as holding:
            idle.execute("SELECT 1")
            idle.commit()
            holding.execute("SELECT 1")
            assert postgres_server.end_sessions(url, only_idle_in_transaction=True) == 1
            idle.execute("SELECT 1")
            idle.commit()
            with pytest.raises(psycopg.OperationalError):
                holding.execute("SELECT 1")
            holding.close()
            assert postgres_server.end_sessions(url) == 1
            idle.close()


def test_a_server_that_was_given_is_never_restarted(postgres_server):
    with running_postgres(url=postgres_server.admin_url.render_as_string(hide_password=False)) as given:
        with pytest.raises(PostgresUnavailableError):
            given.crash_and_restart()
