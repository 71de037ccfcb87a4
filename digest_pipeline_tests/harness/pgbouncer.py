"""A real PgBouncer in transaction mode in front of a test's database: each transaction on whatever session is free."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PORT = 6432
SECONDS = 30.0

_SETTINGS = """\
[databases]
* = host={server}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/log
pidfile = {folder}/pid
"""


@contextmanager
def pooled(folder: Path, url: str, sessions: int) -> Iterator[str]:
    """Lend the URL that leads to ``url`` through a pooler with so few server sessions.

    The start-up options are ignored, as PgBouncer asks for: what they set has to be the server's default.
    """
    assert PROGRAM is not None
    server = make_url(url)
    home = _place(folder)
    text = _SETTINGS.format(server=server.query["host"], port=PORT, folder=home, sessions=sessions)
    settings = home / "pgbouncer.ini"
    settings.write_text(text.replace("* = host", f"* = user={server.username} host"), encoding="utf-8")
    user = "postgres" if os.getuid() == 0 else None  # it refuses to be root
    process = subprocess.Popen(
        [PROGRAM, "-q", str(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=user,
    )
    try:
        through = server.set(query={"host": str(home), "port": str(PORT)})
        _wait(through.set(drivername="postgresql").render_as_string(hide_password=False), home)
        yield through.render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.wait(SECONDS)
        shutil.rmtree(home, ignore_errors=True)


def _place(folder: Path) -> Path:
    """A folder that the pooler's user can enter; a test's own belongs to root alone where we are root."""
    if os.getuid() != 0:
        return folder
    home = Path(tempfile.mkdtemp(prefix="digest-pooler-"))  # sockets need short paths
    home.chmod(0o755)
    os.chown(home, pwd.getpwnam("postgres").pw_uid, -1)
    return home


def _wait(dsn: str, home: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                log = home / "log"
                said = log.read_text(errors="replace") if log.exists() else ""
                raise TimeoutError(f"the pooler does not answer: {error}\n{said}") from error
            time.sleep(0.05)
        else:
            return
