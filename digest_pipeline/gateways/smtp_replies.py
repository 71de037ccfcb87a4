"""What an SMTP reply means at each step of a dialogue: one table, read from top to bottom.

Codes and enhanced codes are those of RFC 5321, RFC 3463, RFC 4954 and RFC 7372, and what large
receivers document on top (5.7.26, 5.7.515). RFC 5321 treats a reply that is lost after the final dot
like 451, and sends again; here it is ambiguous, so this module is never asked about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Outcome,
    Refused,
    Stage,
    Throttled,
)


class Step(StrEnum):
    """How far a dialogue has come. Nothing of the message has left before ``DOT``."""

    CONNECT = "connect"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"


_ENHANCED = re.compile(r"\s*([245]\.\d{1,3}\.\d{1,3})(?!\S)").match
_QUEUE_ID = re.compile(
    r"(?:queued as|queued-as|queue id|id[=:])\s*<?([A-Za-z0-9][\w.@-]{2,127})", re.I
).search
_RELAYING = re.compile(r"\brelay", re.I).search
# SES: "454 Throttling failure: Maximum sending rate exceeded" [documented]
_THROTTLING = re.compile(r"\bthrottl|\bsending rate\b|\brate limit", re.I).search
# SES: "454 Throttling failure: Daily message quota exceeded"; Gmail: "550 5.4.5 Daily user sending limit
# exceeded" [both documented]. A recipient's mailbox "over quota" is not meant.
_USED_UP = re.compile(r"\bdaily\b.{0,30}\b(?:quota|limit)", re.I).search


class Reply(NamedTuple):
    """A reply of the server: its code, and all that it said."""

    code: int
    text: str

    @property
    def enhanced(self) -> str:
        """The enhanced status code, or an empty string."""
        found = _ENHANCED(self.text)
        return found[1] if found else ""


def verdict(step: Step, reply: Reply, hide: Sequence[str] = (), put_off: float | None = None) -> Outcome:
    """Return what a reply means that is not the one that lets the dialogue go on.

    At ``DOT`` a positive reply is an acceptance. ``hide`` is kept out of the detail. ``put_off``: seconds
    before a recipient is tried again that was refused for now, as greylisting does for some minutes.
    """
    said = _Said(step, reply, sanitise(f"{reply.code} {reply.text}", hide), put_off)
    if step is Step.DOT and 200 <= reply.code < 300:
        return Accepted(queue_id(reply))
    if not 400 <= reply.code < 600:
        return _unreadable(said)
    for rule in _RULES[step]:
        if (outcome := rule(said)) is not None:
            return outcome
    return _unreadable(said)


def queue_id(reply: Reply) -> str | None:
    """Return the id under which the server says that it keeps the message, where it does."""
    found = _QUEUE_ID(reply.text)
    return found[1] if found else None


class _Said(NamedTuple):
    step: Step
    reply: Reply
    detail: str
    put_off: float | None

    @property
    def word(self) -> str:
        """What was said, beginning with the step: of a halt only the first words are shown."""
        return f"{self.step} {self.detail}"


_Rule = Callable[[_Said], Outcome | None]


def _unreadable(said: _Said) -> Outcome:
    if said.step is Step.DOT:
        return Ambiguous(f"an unreadable reply to the message: {said.reply.code}")
    return NotSent(FailureClass.TRANSIENT, f"an unreadable reply to {said.step}: {said.reply.code}")


def _stage(step: Step) -> Stage:
    return Stage.AFTER_WIRE if step is Step.DOT else Stage.BEFORE_WIRE


def _transient(said: _Said) -> Outcome | None:
    if said.reply.code >= 500:
        return None
    wait = said.put_off if said.step in (Step.RCPT, Step.DATA, Step.DOT) and said.reply.code != 421 else None
    return NotSent(FailureClass.TRANSIENT, said.word, _stage(said.step), wait)


def _throttled(said: _Said) -> Outcome | None:
    is_pace = (said.step is Step.DOT and said.reply.code == 454) or _THROTTLING(said.reply.text)
    return Throttled(said.word) if said.reply.code < 500 and is_pace else None


def _used_up(said: _Said) -> Outcome | None:
    return AccountRefused(f"quota {said.detail}") if _USED_UP(said.reply.text) else None


def _closing(said: _Said) -> Outcome | None:
    return _transient(said) if said.reply.code == 421 else None


def _no_account(said: _Said) -> Outcome:
    """Nothing that is about one message alone: somebody has to look at the account."""
    return AccountRefused(said.word)


def _login(said: _Said) -> Outcome:
    # No row may change for it, whether it is for good or for now: the gate halts, and one message tries it later.
    word = "credentials" if said.reply.code >= 500 else "transient account:"
    return AccountRefused(f"{word} {said.detail}")


def _unproven_sender(said: _Said) -> Outcome | None:
    """The receiver does not believe that we may send for this domain, or wants a login."""
    enhanced = said.reply.enhanced
    is_proof = enhanced in _AUTHENTICATION or said.reply.code in (530, 534, 535, 538)
    return _no_account(said) if is_proof else None


def _relaying(said: _Said) -> Outcome | None:
    return (
        _no_account(said) if said.reply.enhanced.startswith("5.7.") and _RELAYING(said.reply.text) else None
    )


def _too_large(said: _Said) -> Outcome | None:
    is_size = said.reply.enhanced in ("5.3.4", "5.2.3") or (
        said.reply.code == 552 and not said.reply.enhanced.startswith("5.2.")
    )
    return Refused(FailureClass.CONTENT, said.word) if is_size else None


def _international(said: _Said) -> Outcome | None:
    """RFC 6531 3.5: an address outside ASCII is not taken, for all that SMTPUTF8 was offered."""
    return _recipient(said) if said.reply.enhanced == "5.6.7" else None


def _protocol(said: _Said) -> Outcome | None:
    """The server does not speak what we speak, which it would say to everybody."""
    is_ours = said.reply.code in (500, 502, 503, 504) and not said.reply.enhanced.startswith("5.1.")
    return _no_account(said) if is_ours else None


def _recipient(said: _Said) -> Outcome:
    gone = said.reply.enhanced in _NO_SUCH_MAILBOX
    return Refused(FailureClass.RECIPIENT, said.word, suppressed=gone)


def _policy(said: _Said) -> Outcome | None:
    # 5.7.1 is also what content filters say of one message; the others are about who sends.
    is_policy = said.reply.enhanced.startswith("5.7.") and said.reply.enhanced != "5.7.1"
    return _no_account(said) if is_policy else None


def _unknown_recipient(said: _Said) -> Outcome | None:
    return _recipient(said) if said.reply.enhanced in _RECIPIENT else None


def _content(said: _Said) -> Outcome:
    return Refused(FailureClass.CONTENT, said.word)


_AUTHENTICATION = frozenset(
    {"5.7.0", "5.7.8", "5.7.9", "5.7.11", "5.7.20", "5.7.21", "5.7.22", "5.7.23", "5.7.24", "5.7.25"}
    | {"5.7.26", "5.7.27", "5.7.28", "5.7.29", "5.7.30", "5.7.515"}
)
_NO_SUCH_MAILBOX = frozenset({"5.1.1", "5.1.2", "5.1.6", "5.1.10"})
_RECIPIENT = frozenset({"5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10", "5.2.1", "5.2.2"})

_RULES: dict[Step, tuple[_Rule, ...]] = {
    Step.CONNECT: (_transient, _no_account),
    Step.EHLO: (_transient, _no_account),
    Step.STARTTLS: (_transient, _no_account),
    Step.AUTH: (_closing, _login),
    Step.MAIL: (_used_up, _throttled, _transient, _too_large, _international, _no_account),
    Step.RCPT: (_used_up, _throttled, _transient, _unproven_sender, _relaying, _protocol, _recipient),
    Step.DATA: (
        _used_up, _throttled, _transient, _unproven_sender, _policy, _protocol, _unknown_recipient, _content,
    ),
    Step.DOT: (
        _used_up, _throttled, _transient, _too_large, _unproven_sender, _policy, _unknown_recipient, _content,
    ),
}  # fmt: skip
"""For each step, what a refusal may mean; the first rule that knows it decides."""
