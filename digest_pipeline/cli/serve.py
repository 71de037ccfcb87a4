"""Commands that keep running: the Dagster UI with its daemon, and the sandbox provider."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any

import click

from digest_pipeline.cli.common import need_source, sandbox_for
from digest_pipeline.cli.output import say
from digest_pipeline.cli.report_server import serve_reports
from digest_pipeline.lab.sandbox.command import serve_command
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import Settings

PATIENCE = 40.0
"""Seconds Dagster has to end its own services; it kills them itself after 20."""
GRACE = 10.0
"""Seconds that are left to run workers."""


@click.command()
@click.option("--port", default=3000, show_default=True, help="Of the Dagster UI.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address that the Dagster UI listens at."
)
@click.option("--reports-port", default=3001, show_default=True, type=click.IntRange(0, 65535),
              help="Where this machine's browser reads the reports; 0: any free port.")  # fmt: skip
@click.option("--postgres", "postgres_url", metavar="URL", default=None,
              help="A PostgreSQL database for the ledger and, in a schema apart, for Dagster's own state. "
              "A password belongs into PGPASSWORD.")  # fmt: skip
def dev(port: int, host: str, reports_port: int, postgres_url: str | None) -> None:
    """Start the Dagster UI and daemon on the embedded default, with the sandbox provider beside them.

    The ledger is migrated first. Runs that 'digest run' and 'digest demo' made are seen here too.
    With --postgres, ledger and Dagster share a database, never a schema; no other instance is touched.
    """
    settings = _prepared(postgres_url)
    digests = settings.digests()
    need_source(settings)
    with ExitStack() as stack:
        for digest in digests.values():
            stack.enter_context(sandbox_for(settings, digest))
        stack.enter_context(serve_reports(settings.reports, reports_port))
        say.print(f"Dagster UI: http://{host}:{port}  (Ctrl-C ends it)")
        command = [sys.executable, "-m", "dagster", "dev", "-m", "digest_pipeline.definitions"]
        raise SystemExit(_until_told([*command, "--host", host, "--port", str(port)]))


def _prepared(postgres_url: str | None) -> Settings:
    """Return the settings, with the ledger migrated and this process pointed at a Dagster instance."""
    from digest_pipeline.defs import postgres_instance as postgres
    from digest_pipeline.defs.run import use_instance

    place = postgres.postgres_place(postgres_url) if postgres_url else None
    if place is not None:
        postgres.require_free(place)
        os.environ["DIGEST_LEDGER_URL"] = place.render_as_string(hide_password=False)
    settings = Settings.from_environment()
    settings.digests()  # a wrong specification is told before anything is written
    with Ledger(settings.ledger_url) as ledger:
        migrate.upgrade(ledger, settings.environment)
    if place is None:
        use_instance(settings.home)
    else:
        postgres.use_postgres_instance(settings.home, place)
    return settings


def _until_told(command: list[str]) -> int:
    """Run a command until it ends or we are told to; none of its processes outlives this one."""
    # SIGINT too: a background job of a shell starts with it ignored, and so would everything below it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    # A group of its own: Dagster must be told to end once, by us; told again, it leaves its children.
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            _end(process)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the command end itself, then whatever is left of its group."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        _be_deaf()
        say.print("ending Dagster's processes")
    _be_deaf()  # from here on it takes seconds, and must be done whole
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)


def _be_deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@click.group()
def sandbox() -> None:
    """The sandbox provider: a real mail API over HTTP that keeps count of what it accepted."""


sandbox.add_command(serve_command)
