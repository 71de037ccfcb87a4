"""What the SMTP server does instead of what it should: at which step, how often, and to whom."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

STEPS = ("connect", "ehlo", "starttls", "auth", "mail", "rcpt", "data", "dot", "rset", "quit")
DROP = "drop"
"""Close the connection without a word; at ``dot``, after the whole message was read."""
SILENCE = "silence"
"""Say nothing until the client leaves."""
LATE = "late"
"""Answer as usual, half a second later."""
LATE_SECONDS = 0.5


@dataclass(slots=True)
class Scripted:
    """One order. ``action``: a reply in full, or one of DROP, SILENCE and LATE.

    ``accepts``: at ``dot``, the message is accepted before that. ``times``: dialogues that it still hits.
    ``recipient``: only those that write to this address; at the steps before RCPT it must be empty.
    """

    step: str
    action: str
    times: int = 1
    accepts: bool = False
    recipient: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.step not in STEPS:
            raise ValueError(f"no step {self.step!r} in an SMTP dialogue: {', '.join(STEPS)}")
        if self.accepts and self.step != "dot":
            raise ValueError("a message is accepted at dot")
        self.name = self.name or f"{self.step}:{self.action.split()[0]}{'+' if self.accepts else ''}"

    def to_json(self) -> dict[str, Any]:
        """Return what the constructor takes."""
        return asdict(self)


THROTTLED = Scripted("dot", "454 4.7.0 too many messages")

HARSH: tuple[Scripted, ...] = (
    Scripted("auth", "535 5.7.8 authentication failed"),
    Scripted("auth", DROP),
    Scripted("connect", "421 4.3.2 not now"),
    Scripted("connect", DROP),
    Scripted("ehlo", DROP),
    Scripted("starttls", "454 4.7.0 TLS not available"),
    Scripted("starttls", DROP),
    Scripted("mail", "421 4.4.2 closing"),
    Scripted("mail", "451 4.3.0 try again"),
    Scripted("rcpt", "450 4.2.0 greylisted"),
    Scripted("rcpt", "550 5.1.1 no such user"),
    Scripted("rcpt", DROP),
    Scripted("data", "451 4.3.0 try again"),
    Scripted("data", DROP),
    Scripted("dot", DROP, accepts=True),
    Scripted("dot", SILENCE, accepts=True),
    Scripted("dot", DROP),
    THROTTLED,
    Scripted("dot", "451 4.3.0 try again"),
    Scripted("dot", "554 5.7.1 looks like spam"),
    Scripted("dot", "999 what?", accepts=True),
    Scripted("dot", LATE, accepts=True),
    Scripted("rset", DROP),
    Scripted("quit", "421 4.4.2 closing"),
)
"""One of each: every step goes wrong, before the message was accepted and after."""

_OF_A_MESSAGE = ("mail", "rcpt", "data", "dot")
REPEATS = 3
"""How often a harsh plan goes once more through what hits one message alone (a throttle stops all, for seconds)."""

FIRST, EVERY = 10, 5
"""From this dialogue on, each so-many-th one meets the next order of a harsh plan that is of its kind."""


def harsh(seed: int) -> list[Scripted]:
    """Return a plan in which each of HARSH is certain once about 320 messages have come, in the seed's order.

    What meets a connection being made comes in the first part: the second one breaks enough of them.
    """
    draw = random.Random(seed)
    first, again = list(HARSH), [one for one in HARSH if one.step in _OF_A_MESSAGE and one is not THROTTLED]
    again *= REPEATS
    draw.shuffle(first)
    draw.shuffle(again)
    return [Scripted(**order.to_json()) for order in (*first, *again)]


class Script:
    """The orders in force."""

    def __init__(self) -> None:
        self._orders: list[Scripted] = []
        self._plan: list[Scripted] = []
        self._dialogues = 0

    def add(self, orders: list[Scripted]) -> None:
        """Put orders behind those in force."""
        self._orders += orders

    def follow(self, plan: list[Scripted]) -> None:
        """Let orders come into force one after another, spread over the dialogues."""
        self._plan += plan

    def clear(self) -> None:
        """Drop all orders."""
        self._orders, self._plan = [], []

    def begun(self) -> None:
        """Count a dialogue: a message that is about to be sent."""
        self._dialogues += 1
        if self._plan and self._dialogues >= FIRST and self._dialogues % EVERY == 0:
            self._orders.append(self._plan.pop(0))

    def at(self, step: str, recipient: str = "") -> Scripted | None:
        """Return the order for this step of this dialogue, and count it."""
        for order in self._orders:
            if order.step == step and (not order.recipient or order.recipient == recipient):
                order.times -= 1
                if order.times <= 0:
                    self._orders.remove(order)
                return order
        return None
