"""The suppression list: who is left alone, and why. Addresses are read from standard input, never shown."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from digest_pipeline.cli.decide import by_option, reason_option
from digest_pipeline.cli.output import json_option, say, show, show_rows
from digest_pipeline.errors import InputError
from digest_pipeline.installation import open_ledger
from digest_pipeline.operations import suppressions
from digest_pipeline.operations.suppressions import Order, Whose
from digest_pipeline.operations.trace import as_instant
from digest_pipeline.settings import Settings
from digest_pipeline.states import SuppressionReason

WHY = (SuppressionReason.OPTED_OUT, SuppressionReason.COMPLAINED, SuppressionReason.BOUNCED)
customer_option = click.option(
    "--customer",
    "customer_id",
    default=None,
    help="A customer's id; without it, an address on standard input.",
)
tenant_option = click.option("--tenant", default=None, help="Whose customer; needed with several tenants.")


@click.group()
def suppress() -> None:
    """Show and change whom no digest goes to: opt-outs, complaints, addresses that bounce."""


@suppress.command("list")
@click.option("--tenant", default=None, help="Only this tenant's.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most so many."
)
@json_option
def list_command(tenant: str | None, limit: int, as_json: bool) -> None:
    """List what is suppressed now, the newest first. No address is shown."""
    with open_ledger(Settings.from_environment()) as ledger:
        found = suppressions.listed(ledger, tenant, limit)
    rows = [
        {
            "tenant": row.tenant,
            "address_hash": row.address_hash[:12],
            "reason": row.reason,
            "since": as_instant(row.since_at),
            "expires": as_instant(row.expires_at),
            "source": row.source,
            "key": row.operation_key,
        }
        for row in found
    ]
    if as_json:
        click.echo(json.dumps(rows, default=str))
        return
    show_rows("suppressed", rows)
    if not rows:
        say.print("nobody is suppressed")


@suppress.command("add")
@customer_option
@tenant_option
@click.option(
    "--as", "why", type=click.Choice([str(one) for one in WHY]), default="opted_out", show_default=True
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="For so long; for good without it.",
)
@reason_option
@by_option
@json_option
def add_command(why: str, days: float | None, as_json: bool, **given: Any) -> None:
    """Leave an address alone. At once: what has not been claimed yet is not sent."""
    order = _order(**given)
    with open_ledger(Settings.from_environment()) as ledger:
        changed = suppressions.add(ledger, order, SuppressionReason(why), days)
    show("suppress", {"suppressed": why, "changed": changed}, as_json)


@suppress.command("lift")
@customer_option
@tenant_option
@reason_option
@by_option
@json_option
def lift_command(as_json: bool, **given: Any) -> None:
    """Let an address be written to again; its bounces so far count no more."""
    with open_ledger(Settings.from_environment()) as ledger:
        changed = suppressions.lift(ledger, _order(**given))
    show("lift", {"lifted": changed}, as_json)


def _order(customer_id: str | None, tenant: str | None, reason: str, by: str) -> Order:
    if customer_id is not None:
        return Order(Whose(customer_id=customer_id), tenant, by, reason)
    if sys.stdin is None or sys.stdin.isatty():
        address = click.prompt("Address", hide_input=True, err=True)
    else:
        address = sys.stdin.readline().strip()
    if not address:
        raise InputError("name a customer with --customer, or give an address on standard input")
    return Order(Whose(address=address), tenant, by, reason)
