"""What one sender needs to know: everything fixed for a run, in one value."""

from __future__ import annotations

from dataclasses import dataclass

from digest_pipeline.delivery.retry_policy import Evidence
from digest_pipeline.gateways.base import BatchKey, Capabilities, Gateway, Idempotency
from digest_pipeline.ledger.claims import Claimer
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.spec import Digest
from digest_pipeline.states import HoldReason

MICROS = 1_000_000
KEY_MARGIN_SECONDS = 3600.0
"""Taken off a key's lifetime, at most a tenth of it: the provider's clock and ours may differ."""


@dataclass(frozen=True, slots=True)
class SendPlan:
    """One sender's work: these manifests, through this gateway, by these rules."""

    digest: Digest
    manifest_ids: tuple[int, ...]
    gateway: Gateway
    run_id: str
    sender: str
    environment: str | None = None
    """What this process runs as; None: only that the ledger is no copy is checked."""
    witness: Witness | None = None
    """What this host has seen of the ledger; None: a backup restored in place goes unnoticed."""

    @property
    def gate(self) -> str:
        """The rate gate of the provider account: shared by every digest that sends with it."""
        return gate_name(self.gateway)

    @property
    def claimer(self) -> Claimer:
        """Who claims, for the ledger."""
        return Claimer(
            f"{self.run_id}/{self.sender}",
            self.gateway.name,
            self.gateway.account,
            int(self.digest.sending.lease_seconds * MICROS),
        )

    @property
    def batch_size(self) -> int:
        """Messages in one provider call, at most."""
        return min(self.digest.sending.batch_size, self.gateway.capabilities.batch_size)

    @property
    def keyed_batches(self) -> bool:
        """Whether one key covers all messages of a call, which can then be repeated as a whole only.

        Asked of the gateway alone: batches that went out before ``batch_size`` was lowered are still in doubt.
        """
        can = self.gateway.capabilities
        return can.batch_key is BatchKey.PER_BATCH and can.idempotency is not Idempotency.NONE

    @property
    def resend_lifetime(self) -> int | None:
        """Microseconds from a first claim in which its key is surely known; None: keys don't replay."""
        return resend_lifetime(self.gateway.capabilities, self.digest.sending.lease_seconds)

    @property
    def evidence(self) -> Evidence:
        """How soon an unknown of this gateway can be settled, or why it never will be by itself."""
        sending = self.digest.sending
        return evidence_for(self.gateway.capabilities, sending.timeout_seconds, sending.lease_seconds)


def gate_name(gateway: Gateway) -> str:
    """Return the name of the gate that guards a provider account."""
    return f"{gateway.name}:{gateway.account}"


def resend_lifetime(capabilities: Capabilities, lease_seconds: float) -> int | None:
    """Return the microseconds within which a repeat may be claimed; None: no repeat is ever safe.

    The key's lifetime less a margin, and less the lease: a claim is used at its lease's end at the
    latest, and the provider must know the key then.
    """
    if capabilities.idempotency is not Idempotency.REPLAYS or capabilities.key_lifetime is None:
        return None
    lifetime = capabilities.key_lifetime.total_seconds()
    usable = lifetime - min(KEY_MARGIN_SECONDS, lifetime / 10) - lease_seconds
    return int(usable * MICROS) if usable > 0 else None


def evidence_for(capabilities: Capabilities, timeout_seconds: float, lease_seconds: float) -> Evidence:
    """Return when evidence about an ambiguous attempt that just ended can be had, and whether."""
    if resend_lifetime(capabilities, lease_seconds) is not None:
        return Evidence(0.0)
    if capabilities.visibility_delay is not None:
        # The provider may still be working on a request that we have given up on.
        return Evidence(timeout_seconds + capabilities.visibility_delay.total_seconds())
    return Evidence(None, HoldReason.NO_EVIDENCE)
