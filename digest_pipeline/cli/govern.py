"""Commands that stop and protect: pause, resume, erase."""

from __future__ import annotations

from dataclasses import asdict

import click

from digest_pipeline.cli.common import os_user
from digest_pipeline.cli.decide import apply_option, by_option, reason_option
from digest_pipeline.cli.output import json_option, say, show
from digest_pipeline.errors import InputError
from digest_pipeline.gateways import registry
from digest_pipeline.installation import open_ledger
from digest_pipeline.operations import pause as pausing
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
    by: str | None,
    as_json: bool,
) -> None:
    """Stop new sends of a digest, a tenant or a gateway. Calls under way end as they end."""
    settings = _known(digest_name)
    scope = Scope(digest_name, tenant, gateway)
    if gateway is not None and gateway not in registry.KINDS:
        raise InputError(f"no gateway kind {gateway!r}; there are: {', '.join(registry.KINDS)}")
    with open_ledger(settings) as ledger:
        changed = pausing.pause(ledger, scope, who=by or os_user(), reason=reason)
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
    by: str | None,
    as_json: bool,
) -> None:
    """End a pause. What waited goes out with the next run, if its window is still open."""
    settings = _known(digest_name)
    scope = Scope(digest_name, tenant, gateway)
    with open_ledger(settings) as ledger:
        changed = pausing.resume(ledger, scope, who=by or os_user(), reason=reason)
    show("resume", {"resumed": " ".join(scope.row), "changed": changed}, as_json)


def _known(digest_name: str | None) -> Settings:
    settings = Settings.from_environment()
    if digest_name is not None:
        settings.digest(digest_name)  # a pause of a misspelt name would pause nothing
    return settings


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
    by: str | None,
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
            who=by or os_user(),
            reason=reason,
            apply=apply,
        )
    show("erase", asdict(done), as_json)
    if not done.applied and not as_json:
        say.print("nothing was changed; --apply does it")
