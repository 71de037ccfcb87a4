"""The life of a delivery: its states and the only arrows between them.

``TRANSITIONS`` is the one transition table. Each arrow is one function in ``ledger.transitions``,
one guarded UPDATE; docs/lifecycle.md is drawn from it and the database's CHECK repeats the states.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a delivery stands. Members in the order in which people read them."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RETRY = "retry"
    UNKNOWN = "unknown"
    SENT = "sent"
    CLEANED = "cleaned"
    FAILED = "failed"
    DEAD = "dead"
    SUPPRESSED = "suppressed"
    WRITTEN_OFF = "written_off"


CLAIMABLE = frozenset({State.PENDING, State.RETRY})
UNSETTLED = frozenset({State.PENDING, State.CLAIMED, State.RETRY, State.UNKNOWN})
REACHED = frozenset({State.SENT, State.CLEANED})
DEAD_LETTERS = frozenset({State.FAILED, State.DEAD})
STOPPED = frozenset({State.FAILED, State.DEAD, State.SUPPRESSED, State.WRITTEN_OFF})


class HoldReason(StrEnum):
    """Why a delivery that could be claimed is not."""

    WINDOW_NOT_OPEN = "window_not_open"
    WINDOW_CLOSED = "window_closed"
    PAUSED = "paused"
    SENDING_DISABLED = "sending_disabled"
    RESTORED = "restored"
    CONTENT_NOT_SEALED = "content_not_sealed"
    HALTED = "halted"
    NO_EVIDENCE = "no_evidence"
    OTHER_ACCOUNT = "other_account"
    KEY_EXPIRED = "key_expired"
    INTEGRITY = "integrity"


class SuppressionReason(StrEnum):
    """Why a delivery of the manifest was not to be sent after all."""

    EMPTY = "empty"
    OPTED_OUT = "opted_out"
    SHARED_ADDRESS = "shared_address"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    ERASED = "erased"


@dataclass(frozen=True, slots=True)
class Arrow:
    """One transition: ``name`` is the function in ``ledger.transitions`` that takes it."""

    name: str
    sources: frozenset[State]
    target: State
    when: str
    ambiguity: str = "unchanged"


def _from(*states: State) -> frozenset[State]:
    return frozenset(states)


TRANSITIONS: tuple[Arrow, ...] = (
    Arrow(
        "claim",
        CLAIMABLE,
        State.CLAIMED,
        "due, both seals set, window open or late, gate granted, not suppressed",
    ),
    Arrow("settle_sent", _from(State.CLAIMED), State.SENT, "accepted", "settled"),
    Arrow("settle_retry", _from(State.CLAIMED), State.RETRY, "transient, budget left", "must be clear"),
    Arrow("settle_failed", _from(State.CLAIMED), State.FAILED, "permanent", "must be clear"),
    Arrow("settle_dead", _from(State.CLAIMED), State.DEAD, "budget used up", "must be clear"),
    Arrow(
        "release_pending", _from(State.CLAIMED), State.PENDING, "before the wire; no attempt", "must be clear"
    ),
    Arrow("release_retry", _from(State.CLAIMED), State.RETRY, "before the wire; no attempt", "must be clear"),
    Arrow(
        "settle_unknown",
        _from(State.CLAIMED),
        State.UNKNOWN,
        "ambiguous result, or anything but accepted while ambiguous",
        "set",
    ),
    Arrow("expire_lease", _from(State.CLAIMED), State.UNKNOWN, "lease over", "set"),
    Arrow(
        "doubt",
        _from(State.PENDING, State.RETRY, State.UNKNOWN),
        State.UNKNOWN,
        "the ledger was restored from a backup: its lost copy may have sent it",
        "set",
    ),
    Arrow(
        "reclaim_unknown",
        _from(State.UNKNOWN),
        State.CLAIMED,
        "idempotent re-send: same key, bytes and account, inside the key's lifetime",
    ),
    Arrow(
        "disprove_unknown",
        _from(State.UNKNOWN),
        State.RETRY,
        "negative evidence for every ambiguous attempt",
        "cleared",
    ),
    Arrow("write_off", _from(State.UNKNOWN), State.WRITTEN_OFF, "a person, or the retention rule"),
    Arrow(
        "apply_acceptance",
        frozenset(State) - {State.CLEANED, State.SENT},
        State.SENT,
        "positive evidence, also late",
        "settled",
    ),
    Arrow("resolve_sent", _from(State.UNKNOWN), State.SENT, "a person knows that it was sent", "settled"),
    Arrow("fail_sent", _from(State.SENT), State.FAILED, "the provider says it never left"),
    Arrow("clean", _from(State.SENT), State.CLEANED, "proof reached, window over or delay passed"),
    Arrow("suppress", CLAIMABLE, State.SUPPRESSED, "opted out, erased, suppressed, empty"),
    Arrow("close_window", _from(State.RETRY), State.DEAD, "the delivery window closed"),
    Arrow(
        "close_manifest",
        _from(State.PENDING),
        State.DEAD,
        "its window is over, and a person or the retention rule closed the manifest",
    ),
    Arrow(
        "replay", DEAD_LETTERS, State.RETRY, "a person's order; no attempt was ever accepted", "must be clear"
    ),
)
"""Every arrow of the ledger."""
