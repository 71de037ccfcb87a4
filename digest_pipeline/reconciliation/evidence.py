"""What an answer to "do you know this key?" proves: a pure decision. Instants in microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from digest_pipeline.gateways.base import Capabilities
from digest_pipeline.outcomes import Found, LookUp, LookUpFailed

_MICROS = 1_000_000
APART = 5 * _MICROS
"""Two absences count as two only when they lie at least this, and the visibility delay, apart."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is known of an unknown delivery before it is asked about.

    ``first_at``: its first possibly-wire claim. ``last_ended_at``: the end of the newest ambiguous
    attempt. ``absent_at``: when a counted absence was first seen, None if never.
    """

    first_at: int
    last_ended_at: int
    absent_at: int | None


class Finding(StrEnum):
    """What follows from an answer."""

    SENT = "sent"
    ABSENT_ONCE = "absent_once"
    DISPROVED = "disproved"
    ASK_LATER = "ask_later"
    NO_EVIDENCE = "no_evidence"


def visible_from(doubt: Doubt, capabilities: Capabilities, timeout_seconds: float) -> int:
    """Return the instant from which an accepted key must show up in look-ups.

    The provider may finish a request after we have given it up, so the send's time-out is added.
    """
    assert capabilities.visibility_delay is not None
    wait = timeout_seconds + capabilities.visibility_delay.total_seconds()
    return doubt.last_ended_at + int(wait * _MICROS)


def judge(
    answer: LookUp,
    doubt: Doubt,
    capabilities: Capabilities,
    timeout_seconds: float,
    asked_at: int,
    *,
    control_found: bool,
) -> Finding:
    """Return what an answer proves.

    Any hit means sent. An absence counts only between the visibility delay and the retention, only
    in a pass in which a key that was surely sent is found, and only the second time, apart.
    """
    if isinstance(answer, Found):
        return Finding.SENT
    assert capabilities.look_up_retention is not None
    # The provider may answer as late as the time-out allows, and must still list the key then.
    listed = capabilities.look_up_retention.total_seconds() - timeout_seconds
    if asked_at > doubt.first_at + int(listed * _MICROS):
        return Finding.NO_EVIDENCE
    if isinstance(answer, LookUpFailed) or not control_found:
        return Finding.ASK_LATER
    if asked_at < visible_from(doubt, capabilities, timeout_seconds):
        return Finding.ASK_LATER
    if doubt.absent_at is None:
        return Finding.ABSENT_ONCE
    if asked_at < doubt.absent_at + apart(capabilities):
        return Finding.ASK_LATER
    return Finding.DISPROVED


def apart(capabilities: Capabilities) -> int:
    """Return the microseconds between two absences that count as two."""
    assert capabilities.visibility_delay is not None
    return max(APART, int(capabilities.visibility_delay.total_seconds() * _MICROS))
