"""The asset that sends: a graph of fixed shape, whose steps talk to each other through the ledger alone.

Dynamic batches would be lost on "re-execute from failure"; a fixed number of senders that each pull
from the ledger until nothing is due cannot lose any.
"""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from typing import Any

import dagster as dg

from digest_pipeline.defs.names import CODE_VERSION, asset_key, period_of_run
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.defs.plans import send_plan
from digest_pipeline.defs.resources import Installation
from digest_pipeline.delivery import run as delivery
from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.errors import InputError
from digest_pipeline.ledger import gates, migrate, reads
from digest_pipeline.operations.late import allow_late
from digest_pipeline.periods import Period
from digest_pipeline.reconciliation.publish import publish_report
from digest_pipeline.spec import Digest
from digest_pipeline.states import State


class DeliveryConfig(dg.Config):
    """Set in the Launchpad, to send a period whose delivery window has closed."""

    allow_late: bool = False
    reason: str = ""
    hours: float = 24.0
    by: str = ""


def delivery_outcomes(digest: Digest) -> dg.AssetsDefinition:
    """Return the asset of a digest's delivery outcomes."""
    plan, send, collect = _plan_op(digest), _send_op(digest), _collect_op(digest)

    @dg.graph_asset(
        key=asset_key(digest, "delivery_outcomes"),
        ins={"digest_rows": dg.AssetIn(key=asset_key(digest, "digest_rows"), dagster_type=dg.Nothing)},
        partitions_def=partitions_of(digest),
        group_name=digest.name,
        kinds={"email"},
        code_version=CODE_VERSION,
        description=(
            "What became of every customer of the manifest. Materialising it SENDS what is due and was not "
            "sent before; a period whose window has closed is held unless allow_late is set with a reason. "
            "Materialising it again, or re-executing any step, sends nothing twice: the ledger decides."
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
            migrate.require_same_environment(conn, plan.environment)
            if plan.witness is not None:
                plan.witness.check(conn)
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
    who, reason, hours = config.by or "dagster", config.reason, config.hours
    if not config.allow_late:
        if not digest.late.allow:
            return
        who, reason, hours = "specification", digest.late.reason, digest.late.hours
    if allow_late(installation.ledger, digest, period, who=who, reason=reason, hours=hours):
        context.log.warning("%s %s is sent late, by %s: %s", digest.name, period.label, who, reason)


def _send_op(digest: Digest) -> dg.OpDefinition:
    @dg.op(
        name=f"{digest.name}__send_batches",
        ins={"planned": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        description="Claims, sends and settles until nothing is due; then asks about what is unknown.",
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
        metadata = outcome_metadata(installation, plan, context.run.run_id)
        with installation.ledger.read() as conn:
            gate = gates.read(conn, plan.gate)
        if gate is not None and gate.halt_reason is not None and metadata["waiting"]:
            report = publish_report(
                installation.ledger, plan, period, installation.settings.reports, ask_provider=False
            )
            raise dg.Failure(
                f"sending is halted ({gate.halt_reason}); {metadata['waiting']} deliveries wait. Mend the "
                "cause and run this period again: it tries one, and goes on by itself if that works",
                metadata={**metadata, "report": dg.MetadataValue.path(str(report.html))},
                allow_retries=False,
            )
        context.add_output_metadata(metadata)

    return collect_outcomes


def outcome_metadata(installation: Installation, plan: SendPlan, run_id: str) -> dict[str, Any]:
    """Return what the delivery asset shows: counts that plot over partitions, and what is left."""
    with installation.ledger.read() as conn:
        summary = reads.summarise(conn, plan.manifest_ids, sends=plan.digest.sending.enabled)
        now_sent = reads.accepted_by_run(conn, plan.manifest_ids, run_id)
    waiting = sum(summary.states[s] for s in (State.PENDING, State.RETRY, State.CLAIMED, State.UNKNOWN))
    reached = summary.states[State.SENT] + summary.states[State.CLEANED]
    status = "complete" if summary.is_settled else "incomplete"
    if summary.held:
        status += ": held " + ", ".join(f"{reason} {count}" for reason, count in summary.held.items())
    return {
        "status": status,
        "eligible": summary.entries,
        "sent_now": now_sent,
        "already_sent": max(0, reached - now_sent),
        **{str(state): count for state, count in summary.states.items()},
        "waiting": waiting,
        "held": sum(summary.held.values()),
        "duplicates": summary.duplicates,
        "coverage": round(summary.coverage, 6),
        **{f"failed_{name}": count for name, count in summary.failed.items()},
    }
