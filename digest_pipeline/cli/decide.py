"""Commands with which a person decides about single deliveries. All are dry runs unless --apply is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from digest_pipeline.cli.common import Command, chosen, os_user, period_options
from digest_pipeline.cli.output import json_option, say, show, show_rows
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.installation import open_ledger
from digest_pipeline.ledger import audit
from digest_pipeline.operations import key_files
from digest_pipeline.operations import replay as replays
from digest_pipeline.operations.decisions import Decision, Order
from digest_pipeline.operations.resolve import Verdict
from digest_pipeline.operations.resolve import resolve as resolve_unknowns
from digest_pipeline.operations.trace import as_instant
from digest_pipeline.settings import Settings

SHOWN = 50

apply_option = click.option("--apply", is_flag=True, help="Do it. Without this, only say what would be done.")
by_option = click.option(
    "--by", default=os_user, help="Who decides; declared, not proven.  [default: the OS user]"
)
reason_option = click.option("--reason", required=True, help="Why; written to the audit trail.")
_KEYS = "An operation key, or @FILE for a key file that `list --out` wrote; repeatable."
keys_option = click.option("--keys", required=True, multiple=True, help=_KEYS)
tenant_option = click.option(
    "--tenant",
    default=None,
    help="Whose customers; needed with several tenants, unless the key file says it.",
)


def _needed(name: str, *parameter: str, help: str, multiple: bool = False) -> Callable[[Command], Command]:
    """An option of `replay` itself: required, but not where a sub-command is named."""
    return click.option(name, *parameter, default=None, multiple=multiple, help=f"{help}  [required]")


@click.group(invoke_without_command=True)
@_needed("--digest", "digest_name", help="Name of the digest.")
@_needed("--period", "label", help="ISO week or a date in it: 2026-W42, 2026-10-14.")
@_needed("--keys", help=_KEYS, multiple=True)
@tenant_option
@_needed("--reason", help="Why; written to the audit trail.")
@by_option
@click.option("--hours", default=24.0, show_default=True, help="How long the permission to send them lasts.")
@apply_option
@json_option
@click.pass_context
def replay(ctx: click.Context, /, **given: Any) -> None:
    """Try a bounded set of dead letters again, under their own keys.

    Without --apply it is a dry run. What was or may have been sent is refused by name. Nothing is sent
    by this command itself: the next run of the period does that.
    """
    if ctx.invoked_subcommand is None:
        _require_needed(ctx)
        _order_replay(**given)
    elif any(ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT for name in given):
        raise click.UsageError(f"the options of replay are not those of replay {ctx.invoked_subcommand}")


def _require_needed(ctx: click.Context) -> None:
    for param in ctx.command.params:
        if str(getattr(param, "help", "")).endswith("[required]") and not ctx.params[param.name or ""]:
            raise click.MissingParameter(ctx=ctx, param=param)


def _order_replay(
    digest_name: str,
    label: str,
    keys: tuple[str, ...],
    tenant: str | None,
    reason: str,
    by: str,
    hours: float,
    apply: bool,
    as_json: bool,
) -> None:
    settings, order = _order(digest_name, label, keys, tenant, reason, by, key_files.DEAD_LETTERS)
    with open_ledger(settings) as ledger:
        _tell(replays.replay(ledger, order, apply=apply, hours=hours), as_json)


@replay.command("approve")
@click.argument("number", type=int)
@click.option("--reason", default="", help="Why; written to the audit trail beside the order's.")
@by_option
@apply_option
@json_option
def approve_replay(number: int, reason: str, by: str, apply: bool, as_json: bool) -> None:
    """Approve the replay with this NUMBER, which somebody else ordered. Without --apply: what it would do."""
    settings = Settings.from_environment()
    with open_ledger(settings) as ledger:
        decision = replays.approve(ledger, settings.digests(), number, who=by, apply=apply, reason=reason)
    _tell(decision, as_json)


@replay.command("waiting")
@json_option
def waiting_replays(as_json: bool) -> None:
    """List the replays that wait for somebody else's approval: number, who, why, how many keys."""
    with open_ledger(Settings.from_environment()) as ledger, ledger.read() as conn:
        rows = audit.all_waiting(conn)
    listed = [
        {
            "number": row.id,
            "digest": row.digest,
            "period": row.period,
            "keys": len(json.loads(row.keys)),
            "by": sanitise(row.who),
            "reason": sanitise(row.reason),  # people type addresses into reasons
            "ordered_at": as_instant(row.at),
        }
        for row in rows
    ]
    if as_json:
        click.echo(json.dumps(listed))
        return
    show_rows("replays that wait for approval", listed)
    say.print(
        "digest replay approve NUMBER says what one would do" if listed else "no replay waits for approval"
    )


@click.command()
@period_options
@keys_option
@tenant_option
@click.option("--as", "verdict", type=click.Choice([v.value for v in Verdict]), required=True)
@reason_option
@by_option
@apply_option
@json_option
def resolve(
    digest_name: str,
    label: str,
    keys: tuple[str, ...],
    tenant: str | None,
    verdict: str,
    reason: str,
    by: str,
    apply: bool,
    as_json: bool,
) -> None:
    """Settle unknowns from what a person knows. not-sent can cause a second mail: say it only with evidence."""
    settings, order = _order(digest_name, label, keys, tenant, reason, by, key_files.UNKNOWNS)
    with open_ledger(settings) as ledger:
        _tell(resolve_unknowns(ledger, order, Verdict(verdict), apply=apply), as_json)


def _order(
    digest_name: str,
    label: str,
    given: tuple[str, ...],
    tenant: str | None,
    reason: str,
    by: str,
    kind: str,
) -> tuple[Settings, Order]:
    settings, digest, period = chosen(digest_name, label)
    keys, tenant = key_files.chosen(given, digest, period, kind, tenant)
    return settings, Order(digest, period, keys, by, reason, tenant)


def _tell(decision: Decision, as_json: bool) -> None:
    facts = decision.facts()
    if as_json:
        click.echo(json.dumps(facts | {"keys": decision.changed, "refused_keys": decision.refused}))
    else:
        show(decision.kind, facts, False)
        for key, reason in list(decision.refused.items())[:SHOWN]:
            say.print(f"refused {key}: {reason}", markup=False)
        for line in decision.notes():
            say.print(line, markup=False)
    if decision.refused and not decision.changed:
        raise SystemExit(1)
