"""The ``digest`` command: its groups, and how errors end."""

from __future__ import annotations

import os
import sys

import click
from rich.markup import escape
from sqlalchemy.exc import DBAPIError

from digest_pipeline.cli.output import EXIT_CODES, say
from digest_pipeline.errors import DigestError
from digest_pipeline.redaction import redact
from digest_pipeline.telemetry import configure_logging, redact_tracebacks


@click.group(
    epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="digest-pipeline")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    default="WARNING",
    show_default=True,
    help="DEBUG prints one line per attempt.",
)
def cli(log_level: str) -> None:
    """Send every eligible customer one digest per period, and prove it.

    Where things are comes from the environment: DIGEST_LEDGER_URL, DIGEST_SPECS, DIGEST_HOME and
    DIGEST_ENVIRONMENT (see docs/configuration.md). Without any of them, everything is the demo's.
    """
    configure_logging(log_level)


def _add_commands() -> None:
    from digest_pipeline.cli import decide, govern, inspect, letters, operate, serve
    from digest_pipeline.cli.demo import demo
    from digest_pipeline.cli.gate import gate
    from digest_pipeline.cli.notify import notify
    from digest_pipeline.cli.preview import preview
    from digest_pipeline.cli.send_test import send_test
    from digest_pipeline.cli.subscriber import content, subscriber
    from digest_pipeline.cli.suppress import suppress
    from digest_pipeline.cli.worker import worker
    from digest_pipeline.lab.bench.command import bench
    from digest_pipeline.lab.command import lab

    for command in (
        demo,
        serve.dev,
        serve.sandbox,
        operate.db,
        operate.run,
        operate.check,
        worker,
        subscriber,
        content,
        gate,
        letters.dead_letters,
        decide.replay,
        letters.unknowns,
        decide.resolve,
        govern.pause,
        govern.resume,
        govern.close,
        govern.erase,
        suppress,
        inspect.status,
        inspect.trace,
        preview,
        send_test,
        inspect.report,
        inspect.gateways,
        notify,
        bench,
        lab,
    ):
        cli.add_command(command)


_add_commands()


def main() -> None:
    """Run the command and end the process: 2 for what a person has to correct, 1 for other failures."""
    redact_tracebacks()
    # Dagster and its plugins phone home and print banners unless told otherwise.
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        say.print("stopped")
        sys.exit(130)
    except DigestError as error:
        say.print(f"[bold red]error:[/] {escape(redact(str(error)))}")
        sys.exit(error.exit_code)
    except DBAPIError as error:
        # Its class and SQLSTATE only: the driver's text can quote values, but for what it finds missing.
        state, missing = getattr(error.orig, "sqlstate", None), str(error.orig).startswith("no such ")
        said = f"SQLSTATE {state}" if state else str(error.orig) if missing else ""
        known = type(error.orig).__name__ + (f": {escape(said)}" if said else "")
        say.print(
            f"[bold red]error:[/] the ledger cannot be used ({known}); is the server up, and DIGEST_LEDGER_URL right?"
        )
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
