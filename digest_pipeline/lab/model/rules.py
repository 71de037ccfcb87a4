"""What a world of the model may do: the gateway's capabilities, who takes part, and which guard is gone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from digest_pipeline.gateways.base import Capabilities, Idempotency

LIFETIME = timedelta(hours=24)
VISIBILITY = timedelta(seconds=60)
TIMEOUT_SECONDS = 30.0


class Can(StrEnum):
    """What the gateway offers to settle an unknown with."""

    REPLAYS = "replays"
    LOOK_UP = "look_up"
    NEITHER = "neither"
    BOTH = "both"

    @property
    def replays(self) -> bool:
        """Whether a key that the provider knows gets its first answer again."""
        return self in (Can.REPLAYS, Can.BOTH)

    @property
    def look_up(self) -> bool:
        """Whether the provider can be asked about a key."""
        return self in (Can.LOOK_UP, Can.BOTH)

    @property
    def capabilities(self) -> Capabilities:
        """The same as a gateway declares it, for the real decisions that the model calls."""
        return Capabilities(
            idempotency=Idempotency.REPLAYS if self.replays else Idempotency.NONE,
            key_lifetime=LIFETIME if self.replays else None,
            look_up=self.look_up,
            visibility_delay=VISIBILITY if self.look_up else None,
            look_up_retention=LIFETIME if self.look_up else None,
        )


class Guard(StrEnum):
    """One thing that keeps a delivery from going wrong; a world without it must show how."""

    TOKEN = "token"
    STICKY_AMBIGUITY = "sticky_ambiguity"
    LEASE_TO_UNKNOWN = "lease_to_unknown"
    CLAIM_BEFORE_CALL = "claim_before_call"
    PROOF = "proof"
    ACCOUNT = "account"
    SUPPRESSION_AT_CLAIM = "suppression_at_claim"
    KEY_LIFETIME = "key_lifetime"
    VISIBILITY = "visibility"
    TWO_ABSENCES = "two_absences"
    DOUBT_AFTER_RESTORE = "doubt_after_restore"
    FENCE = "fence"
    """No send starts after its fence. Without it: a process paused between its last check and the wire,
    which is the documented exception."""
    TRUTH = "truth"
    """A person says not-sent only of what was not. Without it: the lie that the docs warn of."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One world to explore: capabilities, numbers, what else happens, and the guards taken away.

    ``faults``: how many may happen in all. ``acts``: how often, in all, a person or the retention rule acts
    or a customer opts out; None for any number. ``window``: the delivery window closes at some moment.
    ``accounts``: the credential is changed once. ``restore``: the ledger may be restored, by a person, from
    a backup of before its first claim. ``budget``: charged attempts, at most.
    """

    can: Can
    keys: int = 1
    workers: int = 2
    reconcilers: int = 2
    faults: int = 2
    acts: int | None = None
    window: bool = True
    accounts: bool = False
    restore: bool = False
    budget: int = 2
    without: frozenset[Guard] = frozenset()

    def has(self, guard: Guard) -> bool:
        """Whether a guard stands."""
        return guard not in self.without
