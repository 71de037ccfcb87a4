"""The asset that sends: a graph of fixed shape, whose steps talk to each other through the ledger alone.

Dynamic batches would be lost on "re-execute from failure"; a fixed number of senders that each pull
from the ledger until nothing is due cannot lose any.
"""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from typing import Any

import dagster as dg
from pydantic import Field

from digest_pipeline.defs.executors import SEND_TAGS
from digest_pipeline.defs.metadata import by_state, links, not_sent, tags_of
from digest_pipeline.defs.names import CODE_VERSION, asset_key, period_of_run
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.defs.plans import send_plan
from digest_pipeline.defs.resources import Installation
from digest_pipeline.delivery import run as delivery
from digest_pipeline.errors import InputError
from digest_pipeline.ledger import gates
from digest_pipeline.operations.late import allow_as_specified, allow_late
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation.publish import publish_report
from digest_pipeline.reconciliation.reporting.figures import Figures, read_figures
from digest_pipeline.reconciliation.reporting.markdown import summary_of
from digest_pipeline.reconciliation.reporting.outcomes import as_outcomes, unsent_reasons
from digest_pipeline.reconciliation.reporting.report import as_row
from digest_pipeline.reconciliation.reporting.speed import Speed
from digest_pipeline.reconciliation.reporting.verdict import status_of
from digest_pipeline.spec import Digest


class DeliveryConfig(dg.Config):
    """Set in the Launchpad, to send a period whose delivery window has closed."""

    allow_late: bool = Field(
        default=False, description="Send this period although its delivery window has closed."
    )
    reason: str = Field(default="", description="Why, for the audit trail; needed with allow_late.")
    hours: float = Field(default=24.0, description="How long the permission lasts.")
    by: str = Field(default="", description="Who decides, for the audit trail: declared, not proven.")


def delivery_outcomes(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's delivery outcomes."""
    plan, send, collect = _plan_op(digest), _send_op(digest), _collect_op(digest)

    @dg.graph_asset(
        key=asset_key(digest, "delivery_outcomes"),
        ins={"digest_rows": dg.AssetIn(key=asset_key(digest, "digest_rows"), dagster_type=dg.Nothing)},
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        owners=digest.owners,
        tags=tags_of(digest) | {"digest/sends": "mail"},
        kinds={"email"},
        code_version=CODE_VERSION,
        description=(
            "What became of every customer of the manifest.\n\n"
            "**Materialising it SENDS** what is due and was not sent before. A period whose delivery window "
            "has closed is held: to send it all the same, set `allow_late` with a `reason` in the launchpad. "
            "Again, or any step re-executed: nothing is sent twice, the ledger decides."
        ),
    )
    def delivery_outcomes(digest_rows: Any) -> Any:
        planned = plan(digest_rows)
        sent = [send.alias(f"send_batches_{n + 1}")(planned) for n in range(digest.sending.senders)]
        return collect(sent)

    return delivery_outcomes


def _plan_op(digest: Digest) -> dg.OpDefinition:
    @dg.op(
        name=f"{digest.name}__plan_delivery",
        ins={"digest_rows": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        description="Checks that this ledger may send, grants lateness where asked, sets the rate gate.",
    )
    def plan_delivery(
        context: dg.OpExecutionContext, config: DeliveryConfig, installation: Installation
    ) -> None:
        period = period_of_run(context, digest)
        plan = send_plan(installation, digest, period, context.run.run_id, "plan")
        ledger = installation.ledger
        with ledger.read() as conn:
            delivery.require_may_send(conn, plan.environment, plan.witness)
        _grant_lateness(context, digest, period, installation, config)
        ledger.transact(lambda conn: delivery.prepare(conn, plan))

    return plan_delivery


def _grant_lateness(
    context: dg.OpExecutionContext,
    digest: Digest,
    period: Period,
    installation: Installation,
    config: DeliveryConfig,
) -> None:
    if config.allow_late and not config.reason.strip():
        raise InputError("allow_late needs a reason: it is written to the audit trail")
    ledger, who, reason = installation.ledger, config.by or "dagster", config.reason
    if config.allow_late:
        granted = allow_late(ledger, digest, period, who=who, reason=reason, hours=config.hours)
    else:
        granted, who, reason = allow_as_specified(ledger, digest, period), "specification", digest.late.reason
    if granted:
        context.log.warning("%s %s is sent late, by %s: %s", digest.name, period.label, who, reason)


def _send_op(digest: Digest) -> dg.OpDefinition:
    @dg.op(
        name=f"{digest.name}__send_batches",
        ins={"planned": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        description="Claims, sends and settles until nothing is due; then asks about what is unknown.",
        tags=SEND_TAGS,
    )
    def send_batches(context: dg.OpExecutionContext, installation: Installation) -> None:
        period = period_of_run(context, digest)
        plan = send_plan(installation, digest, period, context.run.run_id, context.op_handle.name)
        done = delivery.deliver(installation.ledger, plan)
        rate = done.accepted / done.seconds if done.seconds else 0.0
        context.log.info(
            "%s %s: accepted %d in %.1f s (%.0f/s), leases expired %d, evidence %s",
            digest.name,
            period.label,
            done.accepted,
            done.seconds,
            rate,
            done.expired,
            dict(done.findings),
        )

    return send_batches


def _collect_op(digest: Digest) -> dg.OpDefinition:
    @dg.op(
        name=f"{digest.name}__collect_outcomes",
        ins={"sent": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        description="Reads what became of everybody from the ledger; fails the run if sending was halted.",
    )
    def collect_outcomes(context: dg.OpExecutionContext, installation: Installation) -> None:
        period = period_of_run(context, digest)
        plan = send_plan(installation, digest, period, context.run.run_id, "collect")
        with installation.ledger.snapshot() as conn:
            figures = read_figures(conn, digest, period, plan.run_id, None, None)
            gate = gates.read(conn, plan.gate)
        metadata = outcome_metadata(figures)
        if gate is not None and gate.halt_reason is not None and figures.open:
            reports = installation.settings.reports
            report = publish_report(installation.ledger, plan, period, reports, ask_provider=False)
            raise dg.Failure(
                f"sending is halted ({gate.halt_reason}); {figures.open} deliveries wait. Mend the "
                "cause and run this period again: it tries one, and goes on by itself if that works",
                metadata={**metadata, **links(installation.settings, report)},
                allow_retries=False,
            )
        context.add_output_metadata(metadata)

    return collect_outcomes


def outcome_metadata(figures: Figures) -> dict[str, Any]:
    """Return what the delivery asset shows: what this run did, counts that plot, and what is left and why."""
    run = figures.speed.get(figures.run_id, Speed())
    already = max(0, figures.reached - run.accepted)
    return {
        "status": status_of(figures),
        "summary": dg.MetadataValue.md(
            f"This run sent **{run.accepted:,}**; {already:,} had been sent before.\n\n{summary_of(figures)}"
        ),
        "sent_now": run.accepted,
        "already_sent": already,
        **as_outcomes(figures),
        "seconds": round(run.seconds, 3),
        **by_state([as_row(one) for one in figures.tenants]),
        "not_sent": not_sent(unsent_reasons(figures)),
    }
