"""Commands that list what a person decides about, and write the key files that an order takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Connection, Row

from digest_pipeline.cli.common import chosen, period_options
from digest_pipeline.cli.output import json_option, say, show_rows
from digest_pipeline.errors import InputError
from digest_pipeline.installation import open_ledger
from digest_pipeline.ledger import letters
from digest_pipeline.operations import key_files
from digest_pipeline.operations.key_files import Selection
from digest_pipeline.outcomes import FailureClass
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

SHOWN = 50

tenant_option = click.option("--tenant", default=None, help="Only this tenant's.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=None, help="At most so many, in the order of their keys."
)
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a key file, for --keys @FILE: the keys, and a header with the selection, count and checksum.",
)


@click.group("dead-letters")
def dead_letters() -> None:
    """Deliveries that stopped without a send."""


@dead_letters.command("list")
@period_options
@tenant_option
@click.option(
    "--class",
    "failure_class",
    type=click.Choice([str(one) for one in FailureClass]),
    default=None,
    help="Only of this failure class.",
)
@limit_option
@out_option
@json_option
def list_dead_letters(
    digest_name: str,
    label: str,
    tenant: str | None,
    failure_class: str | None,
    limit: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """List a period's dead letters: key, class, attempts."""
    settings, digest, period = chosen(digest_name, label)
    selection = Selection(digest.name, period.label, key_files.DEAD_LETTERS, failure_class, tenant)
    with open_ledger(settings) as ledger, ledger.read() as conn:
        _require_tenant(conn, digest, period, tenant, out)
        rows = letters.dead_letters(
            conn, digest.name, period.label, tenant=tenant, failure_class=failure_class, limit=limit
        )
    fields = ("operation_key", "customer_id", "tenant", "state", "failure_class", "attempts")
    _listed(selection, rows, fields, out, as_json)


@click.group()
def unknowns() -> None:
    """Deliveries nobody knows the outcome of."""


@unknowns.command("list")
@period_options
@tenant_option
@limit_option
@out_option
@json_option
def list_unknowns(
    digest_name: str, label: str, tenant: str | None, limit: int | None, out: Path | None, as_json: bool
) -> None:
    """List a period's unknowns: key, gateway, and why no evidence settles it."""
    settings, digest, period = chosen(digest_name, label)
    selection = Selection(digest.name, period.label, key_files.UNKNOWNS, tenant=tenant)
    with open_ledger(settings) as ledger, ledger.read() as conn:
        _require_tenant(conn, digest, period, tenant, out)
        rows = letters.unknowns(conn, digest.name, period.label, tenant=tenant, limit=limit)
    fields = ("operation_key", "customer_id", "tenant", "gateway", "account", "hold_reason", "attempts")
    _listed(selection, rows, fields, out, as_json)


def _require_tenant(
    conn: Connection, digest: Digest, period: Period, tenant: str | None, out: Path | None
) -> None:
    known = letters.tenants(conn, digest.name, period.label)
    there_are = f"{period.label} has: {', '.join(known) or 'none, it was never frozen'}"
    if tenant is None and out is not None and digest.single_tenant is None:
        raise InputError(
            f"{digest.name} has several tenants, and a key file is about one: --tenant; {there_are}"
        )
    if tenant is not None and tenant not in known:
        raise InputError(f"no tenant {tenant!r} in this period of {digest.name}; {there_are}")


def _listed(
    selection: Selection, rows: Sequence[Row[Any]], fields: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    if out is not None:
        key_files.write(out, selection, [row.operation_key for row in rows])
        say.print(f"{len(rows)} keys written to {out}", markup=False)
    listed = [{name: row._mapping[name] for name in fields} for row in rows]
    if as_json:
        click.echo(json.dumps(listed))
        return
    show_rows(f"{selection.kind}: {len(listed)}", listed[:SHOWN])
    if len(listed) > SHOWN:
        say.print(f"{len(listed) - SHOWN} more: --json or --out FILE has all of them")
    if not listed:
        say.print(f"no {selection.kind}")
