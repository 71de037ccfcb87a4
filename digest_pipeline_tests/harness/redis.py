"""A real Redis as the broker of a test: in the hub of a test's network, gone with it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from digest_pipeline_tests.harness.network import HUB, Network

PROGRAM = shutil.which("redis-server")
SECONDS = 30.0
PORT = 6379


@contextmanager
def broker(network: Network, folder: Path) -> Iterator[str]:
    """Start a Redis that forgets everything at its end, and lend its URL, password included.

    The URL is for machines of the network; a slash and the number of a database are to be added.
    """
    assert PROGRAM is not None
    password = secrets.token_hex(16)
    settings = folder / "redis.conf"
    # In a file: arguments are visible to everybody.
    settings.write_text(
        f'bind {HUB}\nport {PORT}\nrequirepass {password}\nsave ""\nappendonly no\ndir {folder}\n',
        encoding="utf-8",
    )
    settings.chmod(0o600)
    with (folder / "redis.log").open("wb") as log:
        process = network.hub.start([PROGRAM, str(settings)], env={}, log=log)
    try:
        with network.inside(), redis.Redis(HUB, PORT, password=password) as client:
            _wait(client, process, folder / "redis.log")
        yield f"redis://:{password}@{HUB}:{PORT}"
    finally:
        process.terminate()


def _wait(client: redis.Redis, process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            client.ping()
        except redis.exceptions.ConnectionError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Redis did not start: {log.read_text(errors='replace')}") from error
            time.sleep(0.02)
        else:
            return
