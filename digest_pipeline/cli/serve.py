"""Commands that keep running: the Dagster UI with its daemon, and the sandbox provider."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack

import click

from digest_pipeline.cli.common import need_source, sandbox_for
from digest_pipeline.cli.output import say
from digest_pipeline.lab.sandbox.command import serve_command
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import Settings


@click.command()
@click.option("--port", default=3000, show_default=True, help="Of the Dagster UI.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address that the Dagster UI listens at."
)
def dev(port: int, host: str) -> None:
    """Start the Dagster UI and daemon on the embedded default, with the sandbox provider beside them.

    The ledger is migrated first. Runs that 'digest run' and 'digest demo' made are seen here too.
    """
    from digest_pipeline.defs.run import use_instance

    settings = Settings.from_environment()
    digests = settings.digests()
    with Ledger(settings.ledger_url) as ledger:
        migrate.upgrade(ledger, settings.environment)
    need_source(settings)
    use_instance(settings.home)
    with ExitStack() as stack:
        for digest in digests.values():
            stack.enter_context(sandbox_for(settings, digest))
        say.print(f"Dagster UI: http://{host}:{port}  (Ctrl-C ends it)")
        command = [sys.executable, "-m", "dagster", "dev", "-m", "digest_pipeline.definitions"]
        raise SystemExit(_until_told([*command, "--host", host, "--port", str(port)]))


def _until_told(command: list[str]) -> int:
    """Run a command until it ends or we are told to; never leaves it behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            process.terminate()


@click.group()
def sandbox() -> None:
    """The sandbox provider: a real mail API over HTTP that keeps count of what it accepted."""


sandbox.add_command(serve_command)
