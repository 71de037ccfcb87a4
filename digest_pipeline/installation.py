"""One installation, put together: the ledger, the customer sources and the gateways of its digests."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from digest_pipeline import redaction
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import BatchKey, Capabilities, Gateway, Idempotency
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.outcomes import Proof
from digest_pipeline.periods import Period
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest


def open_ledger(settings: Settings) -> Ledger:
    """Return the ledger, checked: it answers and has this build's schema. Raises LedgerError."""
    redaction.keep_passwords_of(settings.ledger_url)
    ledger = Ledger(settings.ledger_url)
    try:
        migrate.require_current(ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


def open_source(settings: Settings, digest: Digest) -> Source:
    """Return a digest's customer database. Raises SpecError when its variable is not set."""
    url = digest.source.value()
    redaction.keep_passwords_of(url)
    return Source(url.replace("{home}", str(settings.home)))


def make_gateway(digest: Digest) -> Gateway:
    """Return a digest's gateway, not entered yet. Raises SpecError for a wrong or missing setting.

    The time-out and the number of connections follow from how the digest sends, so that a gateway
    never waits longer than the lease allows.
    """
    sending = digest.sending
    gateway = digest.gateway.kind
    limits = {"time_out": f"{sending.timeout_seconds:g}s", "connections": str(sending.concurrency)}
    made = registry.create(gateway, settings_of(digest) | limits)
    _require_batches(digest, made.capabilities)
    if digest.cleanup.proof is Proof.DELIVERED and not made.capabilities.delivered_proof:
        raise SpecError(
            f"cleanup.proof: the {gateway} gateway never says delivered, so nothing would ever be cleaned; "
            "use accepted"
        )
    return made


def _require_batches(digest: Digest, can: Capabilities) -> None:
    """Raise SpecError where this digest can't send as many messages in a call as it says."""
    kind, size = digest.gateway.kind, digest.sending.batch_size
    at_once = max(1, digest.rate.burst - math.ceil(digest.rate.per_second / 4))
    if size > can.batch_size:
        most = f"at most {can.batch_size} messages" if can.batch_size > 1 else "one message"
        raise SpecError(f"sending.batch_size ({size}): the {kind} gateway takes {most} in a call")
    if size > 1 and can.idempotency is Idempotency.REPLAYS and can.batch_key is BatchKey.NONE:
        raise SpecError(
            f"sending.batch_size ({size}): the {kind} gateway's keys do not cover a call with several messages, "
            "so that a lost answer could lead to a second mail; use 1"
        )
    if size > at_once:
        raise SpecError(
            f"sending.batch_size ({size}): the messages of a call arrive at once, and rate.burst "
            f"({digest.rate.burst}) less a quarter of rate.per_second lets {at_once} do so; raise rate.burst "
            f"to {size + math.ceil(digest.rate.per_second / 4)} or lower sending.batch_size"
        )


def settings_of(digest: Digest) -> dict[str, str]:
    """Return the settings of a digest's gateway with their values.

    Raises SpecError for a variable that is not set, and for a secret that stands in the specification.
    """
    kind = digest.gateway.kind
    written = {name for name, setting in digest.gateway.settings.items() if isinstance(setting, str)}
    if kind in registry.KINDS and (found := written & registry.KINDS[kind].secrets):
        raise SpecError(
            f"gateway.settings.{min(found)}: a secret comes from the environment, as "
            f"{min(found)}: {{env: {kind.upper()}_{min(found).upper()}}}"
        )
    resolved = digest.gateway.resolved()
    if kind in registry.KINDS:
        redaction.keep_secret(*(resolved[name] for name in registry.KINDS[kind].secrets & resolved.keys()))
    return resolved


def find_period(settings: Settings, digest_name: str, label: str) -> tuple[Digest, Period]:
    """Return a digest and one of its periods, as a person names them. Raises InputError."""
    digest = settings.digest(digest_name)
    return digest, digest.period(label, datetime.now(UTC))
