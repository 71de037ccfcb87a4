"""What a delivery could do now, for whoever starts deliveries: Dagster's sensors, or the pull worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from digest_pipeline.delivery.plan import MICROS, resend_lifetime
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger.follow_ups import FollowUp, Reason, Sending
from digest_pipeline.ledger.gates import GateState
from digest_pipeline.spec import Digest

_TO_THE_PROVIDER = {Reason.EVIDENCE_DUE, Reason.RETRIES_DUE, Reason.UNDELIVERED}


def sending_of(digest: Digest, gateway: Gateway, grace: timedelta) -> Sending:
    """Return how a digest is sent, for the questions about its work. ``grace``: see ``Sending``."""
    sends = digest.sending.enabled
    # Where sending is disabled, an unknown that a re-send settles waits like everything else.
    resends = resend_lifetime(gateway.capabilities, digest.sending.lease_seconds) is not None
    return Sending(gateway.name, sends, sends or not resends, int(grace.total_seconds() * MICROS))


def through_the_gate(
    found: Sequence[FollowUp], gate: GateState | None, now: int
) -> tuple[list[FollowUp], str]:
    """Return what may be done through the rate gate now, and a word about what may not.

    While the account is refused, one period tries one message when the gate's probe is due, for all.
    """
    waiting = [one for one in found if one.reason in _TO_THE_PROVIDER]
    others = [one for one in found if one.reason not in _TO_THE_PROVIDER]
    if gate is None or not waiting:
        return list(found), ""
    if gate.closed_until > now:
        return (
            others,
            f"the provider is given a rest until {as_datetime(gate.closed_until):%Y-%m-%d %H:%M:%S} UTC",
        )
    if gate.halt_reason is None:
        return list(found), ""
    probe_at = gate.probe_at or now
    if probe_at > now:
        return (
            others,
            f"sending is halted; it is tried again after {as_datetime(probe_at):%Y-%m-%d %H:%M:%S} UTC",
        )
    # A message ends a halt; a question is refused as long as it lasts.
    first = min(waiting, key=lambda one: (one.reason is Reason.EVIDENCE_DUE, one.period))
    return [replace(first, reason=Reason.PROBE_DUE, due_at=probe_at), *others], ""
