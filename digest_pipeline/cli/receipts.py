"""What a subscriber's ledger has to tell, and to be told, of the keys that were pushed to it."""

from __future__ import annotations

import json

import click

from digest_pipeline.cli.decide import apply_option, by_option, reason_option
from digest_pipeline.cli.output import json_option, say, show, show_rows
from digest_pipeline.installation import open_ledger
from digest_pipeline.operations import receipts
from digest_pipeline.operations.resolve import Verdict
from digest_pipeline.operations.trace import as_instant
from digest_pipeline.subscriber.settings import SubscriberSettings


@click.command("receipts")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most so many."
)
@json_option
def receipts_command(limit: int, as_json: bool) -> None:
    """List the pushed keys that nothing moves but an event or a person: unknown ones, and rejected ones."""
    with open_ledger(SubscriberSettings.from_environment().own) as ledger:
        found = receipts.listed(ledger, limit)
    rows = [
        {
            "key": row.operation_key,
            "state": row.state,
            "class": row.failure_class,
            "attempts": row.attempts,
            "gateway": row.gateway,
            "claimed_at": as_instant(row.claimed_at),
            "detail": row.detail,
        }
        for row in found
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    show_rows("receipts that wait for a person", rows)
    if not rows:
        say.print("no receipt waits for a person")


@click.command("resolve")
@click.argument("keys", nargs=-1, required=True)
@click.option(
    "--as",
    "verdict",
    type=click.Choice([Verdict.SENT.value, Verdict.NOT_SENT.value]),
    required=True,
    help="not-sent lets the next push of the key be sent: a second mail if you are wrong.",
)
@reason_option
@by_option
@apply_option
@json_option
def resolve_command(
    keys: tuple[str, ...], verdict: str, reason: str, by: str, apply: bool, as_json: bool
) -> None:
    """Settle pushed KEYS, knowing what the machine cannot: unknown ones, or let rejected ones be sent.

    Without --apply it is a dry run. Exit 1 when every key was refused.
    """
    with open_ledger(SubscriberSettings.from_environment().own) as ledger:
        done = receipts.resolve(ledger, keys, Verdict(verdict), who=by, reason=reason, apply=apply)
    word = "changed" if apply else "would_change"
    show("resolve", {word: len(done.changed), "refused": done.refused}, as_json)
    if not apply and not as_json:
        say.print("nothing was changed; --apply does it")
    if not done.changed:
        raise SystemExit(1)
