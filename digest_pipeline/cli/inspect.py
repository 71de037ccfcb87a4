"""Commands that only look: status, trace, report, gateways."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from digest_pipeline.cli.common import chosen, digest_option, period_options, sandbox_for
from digest_pipeline.cli.output import json_option, say, show, show_rows
from digest_pipeline.errors import InputError
from digest_pipeline.gateways import registry
from digest_pipeline.installation import open_ledger, open_source
from digest_pipeline.ledger import pauses, reads
from digest_pipeline.operations.trace import trace as trace_key
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest


@click.command()
@digest_option
@click.option("--period", "label", default=None, help="One period; without it, every frozen one.")
@json_option
def status(digest_name: str, label: str | None, as_json: bool) -> None:
    """What became of a period's customers: states, attempts, coverage, what is held and why."""
    settings = Settings.from_environment()
    digest = settings.digest(digest_name)
    labels = [digest.period(label).label] if label else None
    with open_ledger(settings) as ledger, ledger.read() as conn:
        found = [_status(conn, digest, one) for one in labels or reads.frozen_periods(conn, digest.name)]
    if as_json and label:
        click.echo(json.dumps(found[0]))
    elif as_json:
        click.echo(json.dumps(found))
    elif label:
        show(f"{digest.name} {label}", found[0], False)
    elif found:
        show_rows(digest.name, [_short(one) for one in found])
    else:
        say.print(f"{digest.name} has no frozen period yet: digest run --digest {digest.name} --period ...")


def _status(conn: Any, digest: Digest, label: str) -> dict[str, Any]:
    ids = reads.manifest_ids(conn, digest.name, label)
    headers = reads.headers(conn, ids)
    summary = reads.summarise(conn, ids, sends=digest.sending.enabled, gateway=digest.gateway.kind)
    state = "none" if not headers else "sealed" if all(h.sealed_at for h in headers) else "building"
    return {
        "digest": digest.name,
        "period": label,
        "manifest": {
            "state": state,
            "selected": summary.selected,
            "entries": summary.entries,
            "excluded": summary.excluded,
            "content_sealed": bool(headers) and all(h.content_sealed_at for h in headers),
        },
        "states": summary.states,
        "held": summary.held,
        "suppressed": summary.suppressed,
        "failed": summary.failed,
        "attempts": summary.attempts,
        "duplicates": summary.duplicates,
        "coverage": summary.coverage,
        "oldest_pending_seconds": summary.oldest_pending_seconds,
        "unknown": summary.states["unknown"],
        "cleanup_lag_seconds": summary.cleanup_lag_seconds,
        "paused": [
            f"{kind} {name}" for kind, name, _ in pauses.everything(conn) if _concerns(digest, kind, name)
        ],
    }


def _concerns(digest: Digest, kind: str, name: str) -> bool:
    return name == digest.gateway.kind if kind == "gateway" else name.split("/")[0] == digest.name


def _short(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "period": one["period"],
        "manifest": one["manifest"]["state"],
        "entries": one["manifest"]["entries"],
        "states": one["states"],
        "held": one["held"],
        "duplicates": one["duplicates"],
        "coverage": one["coverage"],
    }


@click.command()
@click.argument("key")
@json_option
def trace(key: str, as_json: bool) -> None:
    """One customer-period by its operation KEY: its state and every attempt, nothing private."""
    with open_ledger(Settings.from_environment()) as ledger:
        found = trace_key(ledger, key)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    show(key, {name: value for name, value in found.delivery.items() if value is not None}, False)
    shown = (
        "token",
        "claimed_at",
        "ended_at",
        "stage",
        "outcome",
        "failure_class",
        "charged",
        "replayed",
        "detail",
    )
    show_rows("attempts", [{name: one[name] for name in shown} for one in found.attempts])


@click.command()
@period_options
@json_option
def report(digest_name: str, label: str, as_json: bool) -> None:
    """Write the reconciliation report of a period: a CSV with every customer, and one HTML page."""
    from digest_pipeline.delivery.plan import SendPlan
    from digest_pipeline.eligibility.drift import drift_or_none
    from digest_pipeline.installation import make_gateway
    from digest_pipeline.reconciliation.publish import publish_report

    settings, digest, period = chosen(digest_name, label)
    with open_ledger(settings) as ledger:
        with ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, period.label)
        if not ids:
            raise InputError(f"{digest.name} {period.label} was never run: there is nothing to report")
        with sandbox_for(settings, digest):
            plan = SendPlan(digest, ids, make_gateway(digest), "cli", "report")
            with open_source(settings, digest) as source:
                drift = drift_or_none(ledger, source, digest, period, ids)
            written = publish_report(ledger, plan, period, settings.reports, drift=drift)
    facts = {"html": str(written.html), "csv": str(written.csv), **written.numbers}
    show(f"report of {digest.name} {period.label}", facts, as_json)


@click.command()
@json_option
def gateways(as_json: bool) -> None:
    """The gateways there are, and what each can do to settle an unknown."""
    described = registry.describe()
    if as_json:
        click.echo(json.dumps(described))
        return
    for kind in described:
        show(kind["kind"], {"summary": kind["summary"], **kind["capabilities"]}, False)
        show("settings", kind["settings"], False)
