"""Commands with which a person decides about single deliveries. All are dry runs unless --apply is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from digest_pipeline.cli.common import chosen, os_user, period_options
from digest_pipeline.cli.output import json_option, say, show, show_rows
from digest_pipeline.errors import InputError
from digest_pipeline.installation import open_ledger
from digest_pipeline.ledger import letters
from digest_pipeline.operations import replay as replays
from digest_pipeline.operations.decisions import Decision, Order, unique
from digest_pipeline.operations.resolve import Verdict
from digest_pipeline.operations.resolve import resolve as resolve_unknowns
from digest_pipeline.settings import Settings

SHOWN = 50

apply_option = click.option("--apply", is_flag=True, help="Do it. Without this, only say what would be done.")
by_option = click.option(
    "--by", default=None, help="Who decides; declared, not proven.  [default: the OS user]"
)
reason_option = click.option("--reason", required=True, help="Why; written to the audit trail.")
keys_option = click.option(
    "--keys", required=True, multiple=True, help="An operation key, or @FILE with one a line; repeatable."
)


@click.group("dead-letters")
def dead_letters() -> None:
    """Deliveries that stopped without a send."""


@dead_letters.command("list")
@period_options
@click.option("--tenant", default=None, help="Only this tenant's.")
@click.option("--class", "failure_class", default=None, help="Only of this failure class.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the keys here, for --keys @FILE."
)
@json_option
def list_dead_letters(
    digest_name: str,
    label: str,
    tenant: str | None,
    failure_class: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """List a period's dead letters: key, class, attempts."""
    settings, digest, period = chosen(digest_name, label)
    with open_ledger(settings) as ledger, ledger.read() as conn:
        rows = letters.dead_letters(
            conn, digest.name, period.label, tenant=tenant, failure_class=failure_class
        )
    fields = ("operation_key", "customer_id", "tenant", "state", "failure_class", "attempts")
    _listed("dead letters", rows, fields, out, as_json)


@click.group()
def unknowns() -> None:
    """Deliveries nobody knows the outcome of."""


@unknowns.command("list")
@period_options
@click.option("--tenant", default=None, help="Only this tenant's.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the keys here, for --keys @FILE."
)
@json_option
def list_unknowns(digest_name: str, label: str, tenant: str | None, out: Path | None, as_json: bool) -> None:
    """List a period's unknowns: key, gateway, and why no evidence settles it."""
    settings, digest, period = chosen(digest_name, label)
    with open_ledger(settings) as ledger, ledger.read() as conn:
        rows = letters.unknowns(conn, digest.name, period.label, tenant=tenant)
    fields = ("operation_key", "customer_id", "tenant", "gateway", "account", "hold_reason", "attempts")
    _listed("unknowns", rows, fields, out, as_json)


def _listed(title: str, rows: list[Any], fields: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    if out is not None:
        out.write_text("".join(f"{row.operation_key}\n" for row in rows), encoding="utf-8")
        say.print(f"{len(rows)} keys written to {out}")
    listed = [{name: row._mapping[name] for name in fields} for row in rows]
    if as_json:
        click.echo(json.dumps(listed))
        return
    show_rows(f"{title}: {len(listed)}", listed[:SHOWN])
    if len(listed) > SHOWN:
        say.print(f"{len(listed) - SHOWN} more: --json or --out FILE has all of them")
    if not listed:
        say.print(f"no {title}")


@click.group()
def replay() -> None:
    """Try dead letters again, under their own keys."""


@replay.command("order")
@period_options
@keys_option
@reason_option
@by_option
@click.option("--hours", default=24.0, show_default=True, help="How long the permission to send them lasts.")
@apply_option
@json_option
def order_replay(
    digest_name: str,
    label: str,
    keys: tuple[str, ...],
    reason: str,
    by: str | None,
    hours: float,
    apply: bool,
    as_json: bool,
) -> None:
    """Order a replay of a bounded set of dead letters. What was or may have been sent is refused by name."""
    settings, order = _order(digest_name, label, keys, reason, by)
    with open_ledger(settings) as ledger:
        _tell(replays.replay(ledger, order, apply=apply, hours=hours), as_json)


@replay.command("approve")
@click.argument("number", type=int)
@by_option
@json_option
def approve_replay(number: int, by: str | None, as_json: bool) -> None:
    """Approve the replay with this NUMBER, which somebody else ordered."""
    settings = Settings.from_environment()
    with open_ledger(settings) as ledger:
        who = by or os_user()
        _tell(replays.approve(ledger, settings.digests(), number, who=who), as_json)


@click.command()
@period_options
@keys_option
@click.option("--as", "verdict", type=click.Choice([v.value for v in Verdict]), required=True)
@reason_option
@by_option
@apply_option
@json_option
def resolve(
    digest_name: str,
    label: str,
    keys: tuple[str, ...],
    verdict: str,
    reason: str,
    by: str | None,
    apply: bool,
    as_json: bool,
) -> None:
    """Settle unknowns from what a person knows. not-sent can cause a second mail: say it only with evidence."""
    settings, order = _order(digest_name, label, keys, reason, by)
    with open_ledger(settings) as ledger:
        _tell(resolve_unknowns(ledger, order, Verdict(verdict), apply=apply), as_json)


def _order(
    digest_name: str, label: str, keys: tuple[str, ...], reason: str, by: str | None
) -> tuple[Settings, Order]:
    settings, digest, period = chosen(digest_name, label)
    return settings, Order(digest, period, _read_keys(keys), by or os_user(), reason)


def _read_keys(given: tuple[str, ...]) -> tuple[str, ...]:
    keys: list[str] = []
    for one in given:
        if not one.startswith("@"):
            keys.append(one)
            continue
        try:
            keys += Path(one[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--keys: the file {one[1:]} cannot be read") from error
    return unique(keys)


def _tell(decision: Decision, as_json: bool) -> None:
    facts = {
        "order": decision.kind,
        "applied": decision.applied,
        "changed" if decision.applied else "would_change": len(decision.changed),
        "refused": len(decision.refused),
        "refused_because": decision.reasons,
        "waits_for_approval": decision.approval,
    }
    if as_json:
        click.echo(json.dumps(facts | {"keys": decision.changed, "refused_keys": decision.refused}))
    else:
        show(decision.kind, facts, False)
        for key, reason in list(decision.refused.items())[:SHOWN]:
            say.print(f"refused {key}: {reason}", markup=False)
        if decision.approval is not None:
            say.print(f"somebody else approves it with: digest replay approve {decision.approval}")
        elif not decision.applied:
            say.print("nothing was changed; --apply does it")
    if decision.refused and not decision.changed:
        raise SystemExit(1)
