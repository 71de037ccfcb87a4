"""A whole site as a team runs it: code server, daemon and web server of Dagster, processes on PostgreSQL.

with site_at(tmp_path, dagster_url) as site:         # the DIGEST_ variables are those of this process
    run_id = site.graphql.launch("tiny_digest_weekly", "2025-W10-1")
    assert site.graphql.wait_for_run(run_id) == "SUCCESS"
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
import yaml
from sqlalchemy.engine import make_url

from digest_pipeline_tests.harness.command import free_port
from digest_pipeline_tests.harness.graphql import GraphQL

PROCESSES = ("code-server", "webserver", "daemon")
LOCATION = "digest_pipeline.definitions"
CODE_SERVERS = {"code-server": ("code-server", "start"), "bare-code-server": ("api", "grpc")}
"""As deployed, a server that starts the one that holds the code and is heard by it every few seconds; and the
latter alone, which needs no heartbeat: a clock that is moved by days would end it."""
INSTANCE = Path(__file__).parents[2] / "deploy" / "dagster.yaml"
START_SECONDS = 300.0
_STOP_SECONDS = 20.0

# Each program is the child of a process that leads a group and waits on a pipe that only we hold open. When we
# close it, or die in any way at all, the read ends, and with it the whole group: run workers included. The
# handler, unlike an ignored signal, is not inherited.
_SUPERVISOR = """
import os, signal, subprocess, sys, threading, time
signal.signal(signal.SIGTERM, lambda *_: None)
program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
end = lambda: (program.wait(), os.killpg(0, signal.SIGKILL))
threading.Thread(target=end, daemon=True).start()
sys.stdin.buffer.read()
os.killpg(0, signal.SIGTERM)
time.sleep(5)
os.killpg(0, signal.SIGKILL)
"""


class Site:
    """The processes of one site. ``home`` is their DAGSTER_HOME; ``url`` is the UI's."""

    def __init__(self, folder: Path, dagster_url: str, environment: Mapping[str, str]) -> None:
        self.home = folder / "site"
        self._logs = folder / "logs"
        self._ports = {"code-server": free_port(), "webserver": free_port()}
        self._environment = _clean_environment() | {
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_POSTGRES_URL": _for_psycopg2(dagster_url),
            "DAGSTER_COMPUTE_LOGS": str(folder / "compute_logs"),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            **environment,
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.graphql = GraphQL(self.url, LOCATION)
        self._write_home()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['webserver']}"

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to work on this site as its processes do."""
        return dict(self._environment)

    def port(self, name: str) -> int:
        """Return where a process that listens does so."""
        return self._ports[name]

    @contextmanager
    def instance(self, patch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
        """Open the site's instance in this process, for reading what its processes did."""
        for name in ("DAGSTER_HOME", "DAGSTER_POSTGRES_URL", "DAGSTER_COMPUTE_LOGS"):
            patch.setenv(name, self._environment[name])
        with dg.DagsterInstance.get() as instance:
            yield instance

    def start(self, *names: str, **environment: str) -> None:
        """Start processes that do not run, with more environment; returns at once."""
        for name in names:
            with (self._logs / f"{name}.log").open("ab") as log:
                self._running[name] = subprocess.Popen(
                    [sys.executable, "-c", _SUPERVISOR, *self._command(name)],
                    cwd=self.home,
                    env=self._environment | environment,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def stop(self, *names: str) -> None:
        """End processes, or all of them, with everything that they started."""
        stopping = [self._running.pop(name) for name in names or tuple(self._running)]
        for one in stopping:
            assert one.stdin is not None
            one.stdin.close()
        for one in stopping:
            try:
                one.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()

    def wait_until_ready(self) -> None:
        """Return once GraphQL answers, the code location is loaded and every daemon that is needed is healthy."""
        deadline = time.monotonic() + START_SECONDS
        while (missing := self._missing()) != "":
            if time.monotonic() > deadline:
                raise TimeoutError(f"the site is not ready: {missing}\n{self.last_words()}")
            time.sleep(0.5)

    def last_words(self) -> str:
        """Return the end of what each process wrote."""
        logs = sorted(self._logs.glob("*.log"))
        return "\n".join(f"== {one.name}\n{one.read_text(errors='replace')[-3000:]}" for one in logs)

    def _missing(self) -> str:
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended:\n{self.last_words()}")
        if "webserver" not in self._running:
            return ""
        try:
            return self.graphql.not_ready(daemon="daemon" in self._running)
        except OSError as error:
            return str(error)

    def _command(self, name: str) -> list[str]:
        scripts = Path(sys.executable).parent
        workspace = ["-w", str(self.home / "workspace.yaml")]
        here = ["-h", "127.0.0.1", "-p"]
        if name in CODE_SERVERS:
            start = [str(scripts / "dagster"), *CODE_SERVERS[name], *here, str(self._ports["code-server"])]
            return [*start, "-m", LOCATION, "--location-name", LOCATION]
        if name == "webserver":
            return [str(scripts / "dagster-webserver"), *workspace, *here, str(self._ports[name])]
        if name == "daemon":
            return [str(scripts / "dagster-daemon"), "run", *workspace]
        raise ValueError(f"a site has no {name!r}: {', '.join((*PROCESSES, *CODE_SERVERS))}")

    def _write_home(self) -> None:
        self.home.mkdir()
        self._logs.mkdir()
        shutil.copy(INSTANCE, self.home / "dagster.yaml")
        server = {"host": "127.0.0.1", "port": self._ports["code-server"], "location_name": LOCATION}
        workspace = {"load_from": [{"grpc_server": server}]}
        (self.home / "workspace.yaml").write_text(yaml.safe_dump(workspace), encoding="utf-8")


@contextmanager
def site_at(
    folder: Path,
    dagster_url: str,
    *,
    processes: tuple[str, ...] = PROCESSES,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Site]:
    """Run a site with its files in ``folder`` and Dagster's storage at ``dagster_url``, an empty database.

    ``environment`` is added to this process's. With fewer ``processes`` the rest can be started later.
    All of them end with the block, and with this process however it ends.
    """
    site = Site(folder, dagster_url, environment or {})
    try:
        site.start(*processes)
        site.wait_until_ready()
        yield site
    finally:
        site.stop()


def _clean_environment() -> dict[str, str]:
    """This process's environment without its Dagster, and without a proxy that would see local requests."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DAGSTER_") and not name.lower().endswith("_proxy")
    }


def _for_psycopg2(url: str) -> str:
    """dagster-postgres speaks psycopg2; the ledger's URLs name psycopg 3."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
