"""Commands that stop and protect: pause, resume, close, erase."""

from __future__ import annotations

from dataclasses import asdict

import click

from digest_pipeline.cli.common import chosen, period_options
from digest_pipeline.cli.decide import apply_option, by_option, reason_option
from digest_pipeline.cli.output import json_option, say, show
from digest_pipeline.installation import open_ledger
from digest_pipeline.operations import pause as pausing
from digest_pipeline.operations.close import close_period
from digest_pipeline.operations.decisions import require_signed
from digest_pipeline.operations.erase import erase_customer
from digest_pipeline.operations.pause import Scope
from digest_pipeline.settings import Settings

digest_option = click.option("--digest", "digest_name", default=None, help="A digest.")
tenant_option = click.option("--tenant", default=None, help="One tenant of the digest.")
gateway_option = click.option("--gateway", default=None, help="A gateway kind, whatever digest uses it.")


@click.command()
@digest_option
@tenant_option
@gateway_option
@reason_option
@by_option
@json_option
def pause(
    digest_name: str | None,
    tenant: str | None,
    gateway: str | None,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """Stop new sends of a digest, a tenant or a gateway. Calls under way end as they end.

    At once and without --apply: stopping must be one step, and `digest resume` takes it back.
    """
    settings = _known(digest_name)
    scope = Scope(digest_name, tenant, gateway)
    with open_ledger(settings) as ledger:
        pausing.require_known(ledger, scope, settings.digest(digest_name) if digest_name else None)
        changed = pausing.pause(ledger, scope, who=by, reason=reason)
    show("pause", {"paused": " ".join(scope.row), "changed": changed}, as_json)


@click.command()
@digest_option
@tenant_option
@gateway_option
@reason_option
@by_option
@json_option
def resume(
    digest_name: str | None,
    tenant: str | None,
    gateway: str | None,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """End a pause. What waited goes out with the next run, if its window is still open.

    At once and without --apply, as the pause was: nothing is sent by this command itself.
    """
    settings = _known(digest_name)
    scope = Scope(digest_name, tenant, gateway)
    with open_ledger(settings) as ledger:
        changed = pausing.resume(ledger, scope, who=by, reason=reason)
    show("resume", {"resumed": " ".join(scope.row), "changed": changed}, as_json)


def _known(digest_name: str | None) -> Settings:
    settings = Settings.from_environment()
    if digest_name is not None:
        settings.digest(digest_name)  # a pause of a misspelt name would pause nothing
    return settings


@click.command()
@period_options
@reason_option
@by_option
@apply_option
@json_option
def close(digest_name: str, label: str, reason: str, by: str, apply: bool, as_json: bool) -> None:
    """End what still waits of a period whose window is over: dead letters of class window, no longer held.

    They keep their content and key, so that a replay can still send them. Unknowns stay unknown.
    """
    settings, digest, period = chosen(digest_name, label)
    require_signed("closing a period", by, reason)
    with open_ledger(settings) as ledger:
        done = close_period(ledger, digest, period, who=by, reason=reason, apply=apply)
    ended = {"ended" if done.applied else "would_end": done.ended}
    facts = {"digest": digest.name, "period": period.label, **ended, "applied": done.applied}
    show("close", facts, as_json)
    if not done.applied and not as_json:
        say.print("nothing was changed; --apply does it")


@click.command()
@click.option("--customer", "customer_id", required=True, help="The customer's id.")
@digest_option
@tenant_option
@reason_option
@by_option
@apply_option
@json_option
def erase(
    customer_id: str,
    digest_name: str | None,
    tenant: str | None,
    reason: str,
    by: str,
    apply: bool,
    as_json: bool,
) -> None:
    """Scrub a customer's address and content from every period; keep the key and the outcome."""
    settings = _known(digest_name)
    with open_ledger(settings) as ledger:
        done = erase_customer(
            ledger,
            customer_id,
            digest=digest_name,
            tenant=tenant,
            who=by,
            reason=reason,
            apply=apply,
        )
    show("erase", asdict(done), as_json)
    if not done.applied and not as_json:
        say.print("nothing was changed; --apply does it")
