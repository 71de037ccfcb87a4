"""Commands that do something: migrate, run a period, check it."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from digest_pipeline.cli.common import chosen, need_source, os_user, period_options, sandbox_for
from digest_pipeline.cli.junit import findings_of, junit_option, require_writable, write_junit
from digest_pipeline.cli.output import json_option, say, show, show_rows
from digest_pipeline.cli.progress import period_progress
from digest_pipeline.errors import InputError
from digest_pipeline.installation import make_gateway, open_ledger
from digest_pipeline.ledger import migrate, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations import rebind as rebinding
from digest_pipeline.operations.rebind import Account
from digest_pipeline.settings import Settings


@click.group()
def db() -> None:
    """The ledger's database."""


@db.command()
@json_option
def upgrade(as_json: bool) -> None:
    """Bring the ledger to this build's schema, or make it. Safe to repeat and to run twice at once."""
    settings = Settings.from_environment()
    with Ledger(settings.ledger_url) as ledger:
        with ledger.read():
            pass  # fails at once where a migration would wait for a server to come back
        version = migrate.upgrade(ledger, settings.environment)
        show("ledger", {"ledger": ledger.describe(), "schema": version}, as_json)


@db.command()
@click.option("--moved", is_flag=True,
              help="The ledger was moved or renamed whole: nothing was sent from another copy since.")  # fmt: skip
@click.option("--restored", metavar="TIME", default=None,
              help="It was restored from a backup made at TIME (ISO 8601 with a zone).")  # fmt: skip
@click.option("--reason", default="", help="Why; written to the audit trail.")
@click.option("--by", default=None, help="Who says so, for the audit trail.  [default: the OS user]")
@click.option("--yes", is_flag=True, help="Go on without asking.")
@json_option
def rebind(moved: bool, restored: str | None, reason: str, by: str | None, yes: bool, as_json: bool) -> None:
    """Let this database send: after a move, a change of DIGEST_ENVIRONMENT, or restoring a backup.

    With --restored, all that could have been sent since TIME becomes unknown, and only evidence or a
    person settles it. If in doubt about TIME, name an earlier one.
    """
    if moved is (restored is not None):
        raise InputError("say what happened: either --moved, or --restored TIME")
    since = _time(restored) if restored is not None else None
    settings = Settings.from_environment()
    if not yes:
        question = "no other copy has sent since, or will?" if moved else "the copy it replaces has stopped?"
        click.confirm(f"Is it certain that {question}", abort=True, err=True)
    why = reason or ("moved" if moved else f"restored from a backup of {restored}")
    with open_ledger(settings) as ledger:
        accounts = _accounts(settings) if since is not None else {}
        done = rebinding.rebind(
            ledger,
            settings.environment,
            who=by or os_user(),
            reason=why,
            restored_from=since,
            accounts=accounts,
        )
        facts: dict[str, Any] = {"ledger": ledger.describe(), "environment": settings.environment}
        if since is not None:
            facts |= {"manifests_in_doubt": done.in_doubt, "now_unknown": done.unknown}
        show("ledger", facts, as_json)


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"--restored: {text!r} is no ISO 8601 time such as 2026-10-19T06:00+00:00") from None


def _accounts(settings: Settings) -> dict[str, Account]:
    gateways = {name: make_gateway(digest) for name, digest in settings.digests().items()}
    return {name: Account(gateway.name, gateway.account) for name, gateway in gateways.items()}


@click.command()
@period_options
@click.option(
    "--allow-late", metavar="REASON", default="", help="Send although the window has closed, and why."
)
@click.option("--by", default=None, help="Who says so, for the audit trail.  [default: the OS user]")
@json_option
def run(digest_name: str, label: str, allow_late: str, by: str | None, as_json: bool) -> None:
    """Materialise one period through Dagster: freeze, send, reconcile, report, clean, check.

    Running it again sends nothing twice. A period whose delivery window has closed is held.
    """
    from digest_pipeline.defs.run import run_period, use_instance

    settings, digest, period = chosen(digest_name, label)
    with open_ledger(settings) as ledger, sandbox_for(settings, digest):
        need_source(settings)
        use_instance(settings.home)
        with period_progress(ledger, digest, period):
            outcome = run_period(digest, period, late_reason=allow_late, by=by or os_user())
        with ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, period.label)
            summary = reads.summarise(conn, ids, sends=digest.sending.enabled, gateway=digest.gateway.kind)
            sent_now = reads.accepted_by_run(conn, ids, outcome.run_id)
    failed = [check for check in outcome.checks if check.is_failure]
    facts = {
        "digest": digest.name,
        "period": period.label,
        "run": outcome.run_id,
        "eligible": summary.entries,
        "sent_now": sent_now,
        "states": summary.states,
        "held": summary.held,
        "duplicates": summary.duplicates,
        "coverage": summary.coverage,
        "checks_passed": sum(check.passed for check in outcome.checks),
        "checks_failed": len(failed),
        "errors": list(outcome.errors),
    }
    show(f"{digest.name} {period.label}", facts, as_json)
    for check in failed:
        say.print(f"[red]check failed:[/] {check.asset} {check.name}: {escape(check.description)}")
    if "window_closed" in summary.held:
        say.print(
            f"{summary.held['window_closed']} are held: the delivery window of {period.label} has closed. "
            "To send them anyway: --allow-late REASON"
        )
    if not outcome.succeeded or failed:
        raise SystemExit(1)


@click.command()
@period_options
@junit_option
@json_option
def check(digest_name: str, label: str, junit: Path | None, as_json: bool) -> None:
    """Run the asset checks of one period; sends nothing. Exit 0: all hold, 1: one fails, 2: bad input."""
    from digest_pipeline.defs.run import run_checks, use_instance

    settings, digest, period = chosen(digest_name, label)
    with open_ledger(settings) as ledger, ledger.read() as conn:
        if not reads.manifest_ids(conn, digest.name, period.label):
            raise InputError(f"{digest.name} {period.label} was never run: there is nothing to check")
    require_writable(junit)
    began = time.monotonic()
    with sandbox_for(settings, digest):
        use_instance(settings.home)
        outcome = run_checks(digest, period)
    if junit is not None:
        seconds = time.monotonic() - began
        write_junit(junit, f"digest check {digest.name} {period.label}", findings_of(outcome), seconds)
    rows = [
        {
            "asset": check.asset,
            "check": check.name,
            "result": "passed" if check.passed else check.severity.lower(),
            "description": check.description,
        }
        for check in outcome.checks
    ]
    if as_json:
        failed = sum(check.is_failure for check in outcome.checks)
        show(
            "",
            {
                "digest": digest.name,
                "period": period.label,
                "failed": failed,
                "checks": rows,
                "errors": list(outcome.errors),
            },
            True,
        )
    else:
        show_rows(f"checks of {digest.name} {period.label}", rows)
        for error in outcome.errors:
            say.print(f"[red]{escape(error)}[/]")
    if not outcome.succeeded or any(check.is_failure for check in outcome.checks):
        raise SystemExit(1)
