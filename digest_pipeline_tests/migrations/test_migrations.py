from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, inspect, text
from sqlalchemy.exc import DBAPIError

from digest_pipeline.errors import EnvironmentMismatchError, LedgerError, SchemaVersionError
from digest_pipeline.lab.postgres import PostgresServer
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import metadata
from digest_pipeline_tests.harness.ledgers import another, dump, migrated, run_ledger_sql

Shape = dict[str, Any]


def shape(ledger: Ledger) -> Shape:
    """Everything about the schema that the engine can tell, in a comparable form."""
    found = inspect(ledger.engine)
    tables = sorted(set(found.get_table_names()) - {"ledger_version"})
    result: Shape = {table: _table(found, table) for table in tables}
    with ledger.read() as conn:
        if ledger.is_postgresql:
            result["sequences"] = sorted(found.get_sequence_names())
            result["options"] = sorted(
                map(
                    tuple,
                    conn.execute(
                        text(
                            "SELECT relname, reloptions::text FROM pg_class WHERE relkind = 'r' AND reloptions IS NOT NULL"
                        )
                    ),
                )
            )
            result["collations"] = sorted(
                map(
                    tuple,
                    conn.execute(
                        text(
                            "SELECT table_name, column_name, collation_name FROM information_schema.columns "
                            "WHERE table_schema = 'public' AND collation_name IS NOT NULL"
                        )
                    ),
                )
            )
            result["indexes"] = sorted(
                conn.execute(
                    text(
                        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'ledger_version'"
                    )
                ).scalars()
            )
        else:
            result["indexes"] = sorted(
                conn.execute(
                    text("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
                ).scalars()
            )
            # AUTOINCREMENT shows nowhere else.
            result["autoincrement"] = sorted(
                conn.execute(
                    text("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'")
                ).scalars()
            )
    return result


def _table(found: Any, table: str) -> Shape:
    def named(items: list[Any]) -> list[Any]:
        return sorted((_plain(item) for item in items), key=repr)

    columns = {
        c["name"]: (str(c["type"]), c["nullable"], c["default"], c.get("comment"))
        for c in found.get_columns(table)
    }
    return {
        "columns": columns,
        "primary_key": _plain(found.get_pk_constraint(table)),
        "unique": named(found.get_unique_constraints(table)),
        "checks": named(found.get_check_constraints(table)),
        "foreign_keys": named(found.get_foreign_keys(table)),
        "indexes": named(found.get_indexes(table)),
    }


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    return str(item) if not isinstance(item, list | tuple) else [_plain(one) for one in item]


@pytest.fixture
def fresh(request: pytest.FixtureRequest, ledger_url: str, tmp_path: Path) -> Iterator[Ledger]:
    """A second, empty database of the same engine, whose tables come from the metadata."""
    if ledger_url.startswith("sqlite"):
        database: AbstractContextManager[str] = nullcontext(f"sqlite:///{tmp_path / 'fresh.db'}")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        database = server.database()
    with database as url, Ledger(url) as ledger:
        metadata.create_all(ledger.engine)
        yield ledger


def test_the_migrated_schema_is_the_schema_of_the_code(ledger_url: str, fresh: Ledger) -> None:
    with migrated(ledger_url) as ledger:
        migrated_shape, fresh_shape = shape(ledger), shape(fresh)
    assert migrated_shape.keys() == fresh_shape.keys()
    for part, expected in fresh_shape.items():
        assert migrated_shape[part] == expected, part
    if fresh.is_postgresql:
        assert "delivery_token" in migrated_shape["sequences"]
        assert ("delivery", "{fillfactor=70}") in migrated_shape["options"]
        assert ("manifest_entry", "operation_key", "C") in migrated_shape["collations"]
    assert sum(" WHERE " in definition for definition in migrated_shape["indexes"]) >= 3


def test_upgrading_again_changes_nothing(ledger_url: str) -> None:
    with migrated(ledger_url, "first") as ledger:
        before, identity = shape(ledger), dump(ledger, "ledger_identity")
        assert migrate.upgrade(ledger, "second") == migrate.head_version()
        assert shape(ledger) == before
        assert dump(ledger, "ledger_identity") == identity
        migrate.require_current(ledger)


def test_two_upgrades_at_once_make_one_ledger(ledger_url: str) -> None:
    def upgrade(_: int) -> str:
        with Ledger(ledger_url) as ledger:
            return migrate.upgrade(ledger, "test")

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(upgrade, range(3))) == {migrate.head_version()}
    with Ledger(ledger_url) as ledger:
        migrate.require_current(ledger)
        assert len(dump(ledger, "ledger_identity")) == 1


def test_an_empty_database_says_to_upgrade(ledger_url: str) -> None:
    with (
        Ledger(ledger_url) as ledger,
        pytest.raises(SchemaVersionError, match=r"is empty: run 'digest db upgrade'"),
    ):
        migrate.require_current(ledger)


def test_a_ledger_of_a_newer_build_is_left_alone(ledger_url: str) -> None:
    with migrated(ledger_url) as ledger:
        run_ledger_sql(ledger, "UPDATE ledger_version SET version_num = '9999'")
        with pytest.raises(SchemaVersionError, match="9999, which this build does not know"):
            migrate.require_current(ledger)
        with pytest.raises(SchemaVersionError, match="9999"):
            migrate.upgrade(ledger, "test")


def test_an_older_ledger_says_to_upgrade(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with migrated(ledger_url) as ledger:
        monkeypatch.setattr(migrate, "head_version", lambda: "9998")
        with pytest.raises(SchemaVersionError, match=r"needs 9998: run 'digest db upgrade'"):
            migrate.require_current(ledger)


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"this is a letter to my aunt " * 100)
    with Ledger(f"sqlite:///{path}") as ledger, pytest.raises(LedgerError, match="cannot be opened"):
        migrate.require_current(ledger)


def test_a_server_that_does_not_answer_is_a_clear_error_without_its_password() -> None:
    with Ledger("postgresql://u:S3cr3t@127.0.0.1:1/x") as ledger:
        with pytest.raises(LedgerError, match="is the server up") as caught:
            migrate.require_current(ledger)
        assert "S3cr3t" not in str(caught.value)


def sends(ledger: Ledger, environment: str = "test") -> bool:
    with ledger.read() as conn:
        try:
            migrate.require_same_environment(conn, environment)
        except EnvironmentMismatchError:
            return False
        return True


def test_the_ledger_of_another_environment_sends_nothing_until_rebound(ledger_url: str) -> None:
    """DUP-26."""
    with migrated(ledger_url, "production") as ledger:
        assert sends(ledger, "production")
        assert not sends(ledger, "staging")
        ledger.transact(lambda conn: migrate.rebind(conn, "staging"))
        assert sends(ledger, "staging")
        assert not sends(ledger, "production")
        assert dump(ledger, "ledger_identity")[0]["token_epoch"] == 2


def test_a_copied_file_sends_nothing_until_rebound_and_the_original_goes_on(tmp_path: Path) -> None:
    """DUP-26."""
    original = tmp_path / "ledger.db"
    migrated(f"sqlite:///{original}").close()
    shutil.copy(original, tmp_path / "copy.db")
    with Ledger(f"sqlite:///{tmp_path / 'copy.db'}") as copy, Ledger(f"sqlite:///{original}") as ledger:
        assert sends(ledger)
        assert not sends(copy)
        copy.transact(lambda conn: migrate.rebind(conn, "test"))
        assert sends(copy)
        assert sends(ledger)


def test_a_file_that_was_moved_or_vacuumed_goes_on_sending(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with migrated(f"sqlite:///{path}") as ledger, ledger.engine.connect() as conn:
        conn.connection.driver_connection.execute("VACUUM")  # type: ignore[union-attr]
    moved = path.rename(tmp_path / "moved.db")
    with Ledger(f"sqlite:///{moved}") as ledger:
        assert sends(ledger)


@pytest.mark.postgresql
def test_a_database_made_from_a_template_sends_nothing_until_rebound(
    postgres_server: PostgresServer,
) -> None:
    """DUP-26."""
    with postgres_server.database() as url:
        migrated(url).close()
        with postgres_server.database(template=url) as copied, Ledger(copied) as copy, Ledger(url) as ledger:
            assert sends(ledger)
            assert not sends(copy)
            copy.transact(lambda conn: migrate.rebind(conn, "test"))
            assert sends(copy)


def test_keys_that_were_built_another_way_are_never_mixed(ledger_url: str) -> None:
    with migrated(ledger_url) as ledger:
        run_ledger_sql(ledger, "UPDATE ledger_identity SET key_version = 99")
        assert not sends(ledger)


def test_a_new_connection_sees_the_same_fingerprint(ledger_url: str) -> None:
    with (
        migrated(ledger_url) as ledger,
        another(ledger) as other,
        ledger.read() as here,
        other.read() as there,
    ):
        assert migrate.fingerprint(here) == migrate.fingerprint(there)


@pytest.mark.postgresql
def test_a_connection_lost_while_the_fingerprint_is_read_makes_no_copy_of_the_ledger(
    postgres_url: str,
) -> None:
    """An error of the database's, which is tried again, and not "this ledger is a copy"."""
    with migrated(postgres_url) as ledger, another(ledger) as other:

        def lose(_conn: Any, cursor: Any, statement: str, *_: Any) -> None:
            if "pg_control_system" in statement:
                with other.write() as there:
                    pid = {"pid": cursor.connection.info.backend_pid}
                    there.execute(text("SELECT pg_terminate_backend(:pid)"), pid)

        event.listen(ledger.engine, "before_cursor_execute", lose)
        with pytest.raises(DBAPIError), ledger.read() as conn:
            migrate.require_same_environment(conn, "test")
        event.remove(ledger.engine, "before_cursor_execute", lose)
        assert sends(ledger)


@pytest.mark.postgresql
def test_a_role_that_may_not_read_the_servers_control_file_still_has_a_fingerprint(postgres_url: str) -> None:
    with migrated(postgres_url) as ledger, ledger.write() as conn:
        conn.execute(text("CREATE ROLE digest_plain"))
        try:
            conn.execute(text("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"))
            conn.execute(text("SET LOCAL ROLE digest_plain"))
            assert re.fullmatch(r"postgresql:\d+", migrate.fingerprint(conn))
        finally:
            conn.rollback()
