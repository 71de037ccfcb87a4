"""Sending one customer's digest to somebody who wants to look at it."""

from __future__ import annotations

import click

from digest_pipeline.cli.common import chosen, need_source, os_user, period_options, sandbox_for
from digest_pipeline.cli.output import json_option, show
from digest_pipeline.installation import make_gateway, open_ledger, open_source
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.operations import send_test as operation
from digest_pipeline.operations.send_test import Sample


@click.command()
@period_options
@click.option("--customer", "customer_id", required=True, help="The customer's id.")
@click.option("--to", "address", required=True, help="Who gets it: yourself, not the customer.")
@click.option("--reason", default="a test mail", show_default=True, help="Why, for the audit trail.")
@click.option("--by", default=None, help="Who says so, for the audit trail.  [default: the OS user]")
@json_option
def send_test(
    digest_name: str, label: str, customer_id: str, address: str, reason: str, by: str | None, as_json: bool
) -> None:
    """Send one customer's digest to an address you name, marked [test], through the real gateway.

    It is no delivery: it has a key of its own, the customer's stays unsent, and its unsubscribe link is
    nobody's. It is rendered from the source as it is now; `digest preview` shows the frozen bytes. Exit 0
    only when the provider took it.
    """
    settings, digest, period = chosen(digest_name, label)
    need_source(settings)
    with (
        open_ledger(settings) as ledger,
        open_source(settings, digest) as source,
        sandbox_for(settings, digest),
    ):
        witness = Witness(settings.home, ledger.describe())
        who = by or os_user()
        sample = Sample(digest, period, customer_id, who, reason, settings.environment, witness)
        sent = operation.send_test(ledger, source, make_gateway(digest), sample, address)
    show(f"test mail of {digest.name} {period.label}", {"customer": customer_id, **sent.facts()}, as_json)
    if not sent.arrived:
        raise SystemExit(1)
