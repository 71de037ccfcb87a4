"""What the sandbox can do wrong on purpose: each fault by name, and the rules that plan them.

A rule selects requests in exactly one way: the next n requests, the n-th key that is new, a list of
keys, or a seeded share. Rules of the last three kinds hit only the first ``attempts`` requests of a
key and then let it pass. A share is decided by a hash of seed, fault, key and attempt number, so a
run with the same keys is hit in the same places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """One way to fail. "After" means the message was accepted although the answer is a failure."""

    SLOW = "slow"
    """Accepts at once and answers correctly, ``delay`` seconds late."""
    THROTTLED_429 = "throttled_429"
    """429 with Retry-After in seconds; nothing was accepted."""
    THROTTLED_429_DATE = "throttled_429_date"
    """429 with Retry-After as an HTTP date; nothing was accepted."""
    UNAVAILABLE_503 = "unavailable_503"
    """503 with the provider's own error body: documented as not processed."""
    RESET_BEFORE_ACCEPT = "reset_before_accept"
    """Reads the request, accepts nothing, resets the connection (RST)."""
    RESET_AFTER_ACCEPT = "reset_after_accept"
    """Accepts, then resets the connection (RST)."""
    TIMEOUT_AFTER_ACCEPT = "timeout_after_accept"
    """Accepts, then stays silent until the client leaves."""
    HELD_AFTER_ACCEPT = "held_after_accept"
    """Accepts, then holds the correct answer until ``/admin/release``."""
    BAD_GATEWAY_502_AFTER_ACCEPT = "bad_gateway_502_after_accept"
    """Accepts; a proxy on the way answers 502 with HTML."""
    TRUNCATED_JSON_AFTER_ACCEPT = "truncated_json_after_accept"
    """Accepts; the 200 is well-framed HTTP but its JSON ends in the middle."""
    CUT_BODY_AFTER_ACCEPT = "cut_body_after_accept"
    """Accepts; the connection closes before Content-Length bytes of the 200 came."""
    HTML_200_AFTER_ACCEPT = "html_200_after_accept"
    """Accepts; the 200 carries a web page."""
    INVALID_RECIPIENT_422 = "invalid_recipient_422"
    """422 about the recipient; nothing was accepted."""
    UNAUTHORIZED_401 = "unauthorized_401"
    """401 as if the key had been revoked; nothing was accepted."""
    SERVER_ERROR_500_BEFORE_ACCEPT = "server_error_500_before_accept"
    """500; nothing was accepted, which the client can't know."""
    SERVER_ERROR_500_AFTER_ACCEPT = "server_error_500_after_accept"
    """Accepts, then answers 500."""
    SHORT_BATCH_ANSWER = "short_batch_answer"
    """Accepts; a batch answer lacks its last item. A single message is answered correctly."""
    SHUFFLED_BATCH_ANSWER = "shuffled_batch_answer"
    """Accepts; a batch answer comes in reverse order. A single message is answered correctly."""

    @property
    def accepts(self) -> bool:
        """Whether the message is processed as usual before the fault shows."""
        return self not in _BEFORE_ACCEPT


_BEFORE_ACCEPT = frozenset(
    {
        Fault.THROTTLED_429,
        Fault.THROTTLED_429_DATE,
        Fault.UNAVAILABLE_503,
        Fault.RESET_BEFORE_ACCEPT,
        Fault.INVALID_RECIPIENT_422,
        Fault.UNAUTHORIZED_401,
        Fault.SERVER_ERROR_500_BEFORE_ACCEPT,
    }
)

_NEEDS_A_HAND = frozenset({Fault.HELD_AFTER_ACCEPT})
_ONLY_BATCHES = frozenset({Fault.SHORT_BATCH_ANSWER, Fault.SHUFFLED_BATCH_ANSWER})

HARSH_FAULTS: tuple[Fault, ...] = tuple(f for f in Fault if f not in _NEEDS_A_HAND | _ONLY_BATCHES)
"""Every fault that a run of single messages can meet unattended."""


@dataclass(slots=True)
class Rule:
    """Which requests a fault hits. Exactly one of the first four selectors is given.

    ``next``: this many requests from now on, whatever their key. ``nth_key``: the first request of
    the n-th new key (or the next one free), once. ``keys``: these keys. ``share``: this part of all
    keys, by ``seed``. ``route`` is ``send`` or ``look_up``. ``retry_after`` and ``delay`` are seconds. ``id``, ``base`` (new keys before the
    rule was added) and ``hits`` are the server's.
    """

    fault: Fault
    next: int | None = None
    nth_key: int | None = None
    keys: Sequence[str] | None = None
    share: float | None = None
    seed: int = 0
    route: str = "send"
    attempts: int = 1
    retry_after: float = 1.0
    delay: float = 0.5
    id: int = 0
    base: int = 0
    hits: int = 0
    _keys: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.fault = Fault(self.fault)
        if sum(value is not None for value in (self.next, self.nth_key, self.keys, self.share)) != 1:
            raise ValueError("a fault rule needs exactly one of next, nth_key, keys and share")
        self._keys = frozenset(self.keys or ())

    def wants(self, key: str, attempt: int, new_keys: int) -> bool:
        """Whether this request is to be hit; ``new_keys`` counts the keys seen so far."""
        if self.next is not None:
            return self.hits < self.next
        if attempt > self.attempts:
            return False
        if self.nth_key is not None:
            return self.hits < 1 and attempt == 1 and new_keys - self.base >= self.nth_key
        if self.share is not None:
            return _uniform(self.seed, self.fault, key, attempt) < self.share
        return key in self._keys

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads, without the defaults of unused selectors."""
        found = {name: value for name, value in asdict(self).items() if name[0] != "_" and value is not None}
        return found | {"keys": list(self.keys)} if self.keys is not None else found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Rule:
        """Return the rule. Raises ValueError for an unknown field, fault or combination."""
        known = {f.name for f in fields(cls) if f.init}
        if unknown := set(data) - known:
            raise ValueError(f"unknown fields of a fault rule: {', '.join(sorted(unknown))}")
        return cls(**data)


def harsh(seed: int, share: float = 0.03, first: int = 10, every: int = 5, burst: int = 2) -> list[Rule]:
    """Return a plan in which each of HARSH_FAULTS is certain once about 90 keys have come.

    The first ``burst`` requests get 401; from the ``first`` new key on, each ``every``-th one gets
    the next fault; besides, ``share`` of all keys get some fault on their first request.
    """
    rules = [Rule(Fault.UNAUTHORIZED_401, next=burst)]
    others = [fault for fault in HARSH_FAULTS if fault is not Fault.UNAUTHORIZED_401]
    rules += [Rule(fault, nth_key=first + every * place) for place, fault in enumerate(others)]
    rules += [Rule(fault, share=share / len(others), seed=seed) for fault in others]
    return rules


def profile(name: str, seed: int) -> list[Rule]:
    """Return the rules of a named profile: ``none`` or ``harsh``. Raises ValueError."""
    if name == "none":
        return []
    if name == "harsh":
        return harsh(seed)
    raise ValueError(f"no fault profile called {name!r}; there are none and harsh")


def _uniform(seed: int, fault: Fault, key: str, attempt: int) -> float:
    digest = hashlib.blake2b(f"{seed}|{fault}|{key}|{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
