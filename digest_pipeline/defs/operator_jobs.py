"""What a person may do, as jobs with a typed form in the Launchpad: the same functions as the command line.

One set for the code location; a field names the digest. They have no partition, so that none of them
waits for a run of its period: stopping must not queue behind what it stops.
"""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import dagster as dg

from digest_pipeline.defs.names import OPERATOR_TAG
from digest_pipeline.defs.operator_forms import (
    MOST_KEYS_IN_CONFIG,
    ApprovalConfig,
    EraseConfig,
    OfKeys,
    OfPeriod,
    PauseConfig,
    ReplayConfig,
    ResolveConfig,
    Scope,
)
from digest_pipeline.defs.resources import Installation
from digest_pipeline.errors import DigestError, InputError
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.operations import close as closing
from digest_pipeline.operations import erase as erasing
from digest_pipeline.operations import key_files
from digest_pipeline.operations import pause as pausing
from digest_pipeline.operations import replay as replays
from digest_pipeline.operations import resolve as resolving
from digest_pipeline.operations.decisions import Decision, Order, require_signed

SHOWN = 50

# An order is given once: what a crash left undone is for the person to see, not for Dagster to repeat.
# The priority lets it pass whatever waits in the run queue.
TAGS = {"dagster/max_retries": "0", "dagster/priority": "100", OPERATOR_TAG: "true"}
_DRY = "A DRY RUN unless `apply` is set. Audited in `operator_action`."
_AT_ONCE = "Takes effect AT ONCE: stopping must be one step. Audited in `operator_action`. Sends nothing."


@dg.op(name="order_replay", out=dg.Out(dg.Nothing))
def order_replay(context: dg.OpExecutionContext, config: ReplayConfig, installation: Installation) -> None:
    """Give the order; the next run of the period sends what it let go."""
    with _clear_failures():
        order = _order(installation, config, key_files.DEAD_LETTERS)
        done = replays.replay(installation.ledger, order, apply=config.apply, hours=config.hours)
    _tell(context, done)


@dg.op(name="approve_order", out=dg.Out(dg.Nothing))
def approve_order(context: dg.OpExecutionContext, config: ApprovalConfig, installation: Installation) -> None:
    """Judge the order that waits anew, and carry it out."""
    with _clear_failures():
        require_signed("an approval", config.by, config.reason)
        done = replays.approve(
            installation.ledger,
            installation.settings.digests(),
            config.number,
            who=config.by,
            apply=config.apply,
            reason=config.reason,
        )
    _tell(context, done)


@dg.op(name="resolve_unknowns", out=dg.Out(dg.Nothing))
def resolve_unknowns(
    context: dg.OpExecutionContext, config: ResolveConfig, installation: Installation
) -> None:
    """Settle the unknowns that are named."""
    with _clear_failures():
        order = _order(installation, config, key_files.UNKNOWNS)
        verdict = resolving.Verdict(config.verdict.value)
        done = resolving.resolve(installation.ledger, order, verdict, apply=config.apply)
    _tell(context, done)


@dg.op(name="pause_scope", out=dg.Out(dg.Nothing))
def pause_scope(context: dg.OpExecutionContext, config: PauseConfig, installation: Installation) -> None:
    """Let nothing new start in the scope."""
    with _clear_failures():
        scope = _scope(installation, config)
        digest = installation.settings.digest(scope.digest) if scope.digest else None
        pausing.require_known(installation.ledger, scope, digest)
        changed = pausing.pause(installation.ledger, scope, who=config.by, reason=config.reason)
    _show(context, {"paused": " ".join(scope.row), "changed": changed})


@dg.op(name="resume_scope", out=dg.Out(dg.Nothing))
def resume_scope(context: dg.OpExecutionContext, config: PauseConfig, installation: Installation) -> None:
    """Let the scope send again."""
    with _clear_failures():
        scope = _scope(installation, config)
        changed = pausing.resume(installation.ledger, scope, who=config.by, reason=config.reason)
    _show(context, {"resumed": " ".join(scope.row), "changed": changed})


@dg.op(name="close_period", out=dg.Out(dg.Nothing))
def close_period(context: dg.OpExecutionContext, config: OfPeriod, installation: Installation) -> None:
    """End what waits of the period."""
    with _clear_failures():
        require_signed("closing a period", config.by, config.reason)
        digest = installation.settings.digest(config.digest)
        period = digest.period(config.period)
        done = closing.close_period(
            installation.ledger, digest, period, who=config.by, reason=config.reason, apply=config.apply
        )
    ended = {"ended" if done.applied else "would_end": done.ended, "applied": done.applied}
    _show(context, {"digest": digest.name, "period": period.label, **ended})


@dg.op(name="erase_customer", out=dg.Out(dg.Nothing))
def erase_customer(context: dg.OpExecutionContext, config: EraseConfig, installation: Installation) -> None:
    """Scrub the customer."""
    with _clear_failures():
        if config.digest is not None:
            installation.settings.digest(config.digest)
        done = erasing.erase_customer(
            installation.ledger,
            config.customer,
            digest=config.digest,
            tenant=config.tenant,
            who=config.by,
            reason=config.reason,
            apply=config.apply,
        )
    _show(context, asdict(done))


def operator_jobs() -> list[dg.JobDefinition]:
    """Return the jobs of a code location with which a person decides, stops and protects."""
    return [
        _job("replay", order_replay, f"Dead letters are tried again, under their own keys. {_DRY} Sends nothing: "
             "the next run of the period does that. What was or may have been sent is refused by name."),
        _job("approve_replay", approve_order, f"Approves a replay that somebody else ordered. {_DRY}"),
        _job("resolve", resolve_unknowns, f"Settles unknowns from what a person knows. {_DRY}"),
        _job("pause", pause_scope, f"No new send of a digest, a tenant or a gateway. {_AT_ONCE}"),
        _job("resume", resume_scope, f"Ends a pause. {_AT_ONCE}"),
        _job("close", close_period, f"Ends what still waits of a period whose window is over. {_DRY}"),
        _job("erase", erase_customer, "Scrubs a customer's address and content from every period; the key and "
             f"the outcome stay. {_DRY} Cannot be undone."),
    ]  # fmt: skip


def _job(name: str, op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    # Never on Celery's workers: a pause would wait behind the steps that it is to stop, and a key file lies here.
    @dg.job(name=name, description=description, tags=TAGS, executor_def=dg.in_process_executor)
    def made() -> None:
        op()

    return made


@contextmanager
def _clear_failures() -> Iterator[None]:
    try:
        yield
    except DigestError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _order(installation: Installation, config: OfKeys, kind: str) -> Order:
    if len(config.keys) > MOST_KEYS_IN_CONFIG:
        raise InputError(
            f"{len(config.keys)} keys are more than the {MOST_KEYS_IN_CONFIG} that the form takes: use key_file"
        )
    if any(key.startswith("@") for key in config.keys):
        raise InputError("the form takes a key file in key_file, not as @FILE among the keys")
    digest = installation.settings.digest(config.digest)
    period = digest.period(config.period)
    given = [*config.keys, *([f"@{config.key_file}"] if config.key_file else [])]
    keys, tenant = key_files.chosen(given, digest, period, kind, config.tenant)
    return Order(digest, period, keys, config.by, config.reason, tenant)


def _scope(installation: Installation, config: PauseConfig) -> pausing.Scope:
    wanted = {Scope.DIGEST: {"digest"}, Scope.TENANT: {"digest", "tenant"}, Scope.GATEWAY: {"gateway"}}
    given = {name for name in ("digest", "tenant", "gateway") if getattr(config, name) is not None}
    if given != wanted[config.scope]:
        raise InputError(
            f"scope {config.scope.name} needs {' and '.join(sorted(wanted[config.scope]))}, and nothing else"
        )
    if config.digest is not None:
        installation.settings.digest(config.digest)  # a misspelt one would stop nobody
    return pausing.Scope(config.digest, config.tenant, config.gateway)


def _tell(context: dg.OpExecutionContext, done: Decision) -> None:
    facts = done.facts() | {
        "keys": done.changed[:SHOWN],
        "refused_keys": dict(list(done.refused.items())[:SHOWN]),
        "notes": done.notes("apply: true"),
    }
    metadata = _show(context, facts)
    for key, reason in facts["refused_keys"].items():
        context.log.warning("refused %s: %s", key, reason)
    if done.refused and not done.changed:
        raise dg.Failure("every key was refused", metadata=metadata, allow_retries=False)


def _show(context: dg.OpExecutionContext, facts: dict[str, Any]) -> dict[str, Any]:
    # What a person typed may hold an address.
    typed = {name: sanitise(facts[name]) for name in ("by", "reason") if name in facts}
    shown = {name: value for name, value in (facts | typed).items() if value is not None}
    counted = {name: value for name, value in shown.items() if not isinstance(value, list | dict)}
    context.log.info("%s", ", ".join(f"{name} {value}" for name, value in counted.items()))
    metadata = {
        name: dg.MetadataValue.json(value) if isinstance(value, list | dict) else value
        for name, value in shown.items()
    }
    context.add_output_metadata(metadata)
    return metadata
