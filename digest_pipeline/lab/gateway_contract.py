"""What holds for every gateway, for a team to run against its own: see docs/adding_a_gateway.md.

Subclass ``GatewayContract`` in a test module, give it a ``stand`` fixture, and run pytest:

    class TestHouseMail(GatewayContract):
        cannot = {Situation.THROTTLES: "never limits its callers"}

        @pytest.fixture
        def stand(self): ...

The stand is a real server that behaves as the provider documents, new and empty for each test; what it
counts is the judge, and never what the gateway says of itself. Name this module in a conftest.py, with
``pytest.register_assert_rewrite``, to see what a failed claim compared.
"""

from __future__ import annotations

import asyncio
import base64
import unittest
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import ClassVar, Protocol, TypeVar, cast
from urllib.parse import quote

from digest_pipeline.content.message import Message
from digest_pipeline.gateways.base import BatchGateway, BatchRefused, Envelope, Gateway, Idempotency
from digest_pipeline.outcomes import (
    Absent,
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    Found,
    LookUp,
    NotSent,
    Outcome,
    Refused,
    Stage,
    Throttled,
)

T = TypeVar("T")


class Situation(StrEnum):
    """What a stand is asked to do with the next request that sends something."""

    ACCEPTS = "accepts"
    REFUSES_THE_RECIPIENT = "refuses the recipient"
    REFUSES_THE_ACCOUNT = "refuses the account"
    THROTTLES = "throttles"
    IS_UNREACHABLE = "is unreachable"
    DROPS_AFTER_ACCEPTING = "takes the message and closes the connection without a word"
    IS_SILENT_AFTER_ACCEPTING = "takes the message and never answers"
    IS_UNREADABLE_AFTER_ACCEPTING = "takes the message and answers what nobody can read"
    FAILS_AFTER_ACCEPTING = "takes the message and says that something went wrong"
    DROPS_BEFORE_ACCEPTING = "reads the whole request, takes nothing, and closes the connection"


class Stand(Protocol):
    """A provider, real or emulated, in a process or thread of its own."""

    secrets: Sequence[str]
    """The credential in its parts."""

    def arrange(self, situation: Situation) -> None:
        """Put the provider into a situation for the next request."""

    def gateway(self) -> Gateway:
        """Return a gateway to it, not entered yet, that gives up within a second or so."""

    def accepted(self, operation_key: str) -> int:
        """Return how many messages the provider took under a key."""

    def arrivals(self, operation_key: str) -> int:
        """Return how often a message with the key reached the provider, taken or not."""

    def recipients(self, operation_key: str) -> Sequence[str]:
        """Return every address that the newest message under a key was for, copies included."""


KEYS = (
    "customer_digest:2026-W42:customer-1842",
    "portfolio_report:2026-10-14:a%2Fb%3A%25/customer%2B7%26x%3D1",
    "customer_digest:2026-W42:" + "c" * 231,
    "#" + "0f" * 32,
)
"""A plain key, and what is hard to carry: escapes, the greatest length, a hash in place of one that was longer."""

IN_DOUBT = (
    Situation.DROPS_AFTER_ACCEPTING,
    Situation.IS_SILENT_AFTER_ACCEPTING,
    Situation.IS_UNREADABLE_AFTER_ACCEPTING,
    Situation.FAILS_AFTER_ACCEPTING,
)
NOT_ONE_ADDRESS = (
    "a@example.test, b@example.test",
    "a@example.test;b@example.test",
    "a@example.test\r\nBcc: b@example.test",
    "A <a@example.test>",
    '"victim@evil.test x"@example.test',
)


def envelope(key: str = KEYS[0], recipient: str = "reader@example.test", name: str = "Reader") -> Envelope:
    """Return a small digest with the headers that a real one has."""
    headers = (
        ("Date", "Mon, 19 Oct 2026 06:00:00 +0000"),
        ("Message-ID", "<1842@sender.test>"),
        ("List-Id", "<weekly.sender.test>"),
        ("List-Unsubscribe", "<https://sender.test/u/1>"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
        ("X-Operation-Key", key),
    )
    html = "<p>Hello é</p>"
    message = Message("Digest <digest@sender.test>", name, "Your week", "Hello é", html, headers, "=_digest")
    return Envelope(key, recipient, message)


class GatewayContract:
    """The claims. ``cannot``: situations that the stand cannot arrange, each with the reason."""

    cannot: ClassVar[Mapping[Situation, str]] = {}

    def test_the_gateway_says_who_it_is_and_shows_no_secret(self, stand: Stand) -> None:
        """``account`` is a short stable digest of the credential; ``repr`` holds no part of it."""
        gateway, again = stand.gateway(), stand.gateway()
        assert gateway.account == again.account
        assert gateway.account.isalnum()
        assert 8 <= len(gateway.account) <= 16
        assert not [secret for secret in stand.secrets if secret in repr(gateway) + gateway.account]

    def test_a_clear_yes_is_accepted_once(self, stand: Stand) -> None:
        """With the provider's id, which events and support will name."""
        outcome = self._outcome(stand, Situation.ACCEPTS)
        assert isinstance(outcome, Accepted)
        assert outcome.message_id
        assert stand.accepted(KEYS[0]) == 1
        assert list(stand.recipients(KEYS[0])) == ["reader@example.test"]

    def test_every_operation_key_can_be_sent(self, stand: Stand) -> None:
        """Also the longest, and those with escapes."""
        for key in KEYS:
            assert isinstance(self._outcome(stand, Situation.ACCEPTS, envelope(key)), Accepted)
            assert stand.accepted(key) == 1

    def test_a_refused_recipient_is_permanent(self, stand: Stand) -> None:
        """And nobody else's fault."""
        outcome = self._outcome(stand, Situation.REFUSES_THE_RECIPIENT)
        assert isinstance(outcome, Refused)
        assert outcome.failure_class is FailureClass.RECIPIENT
        assert stand.accepted(KEYS[0]) == 0

    def test_a_refused_account_is_nobodys_failure(self, stand: Stand) -> None:
        """It halts sending, and charges no customer."""
        assert isinstance(self._outcome(stand, Situation.REFUSES_THE_ACCOUNT), AccountRefused)

    def test_throttling_is_no_failure(self, stand: Stand) -> None:
        """It closes the gate for everybody."""
        assert isinstance(self._outcome(stand, Situation.THROTTLES), Throttled)

    def test_no_connection_proves_that_nothing_was_sent(self, stand: Stand) -> None:
        """The one failure that may be retried without any evidence."""
        outcome = self._outcome(stand, Situation.IS_UNREACHABLE)
        assert isinstance(outcome, NotSent)
        assert (outcome.failure_class, outcome.stage) == (FailureClass.CONNECT, Stage.BEFORE_WIRE)

    def test_what_may_have_been_taken_is_ambiguous_and_was_offered_once(self, stand: Stand) -> None:
        """No layer below tries again: neither the client nor its connection pool."""
        for number, situation in enumerate(one for one in IN_DOUBT if one not in self.cannot):
            key = f"customer_digest:2026-W42:doubt-{number}"
            assert isinstance(self._outcome(stand, situation, envelope(key)), Ambiguous), situation
            assert (stand.accepted(key), stand.arrivals(key)) == (1, 1), situation

    def test_what_left_is_ambiguous_even_where_nothing_was_taken(self, stand: Stand) -> None:
        """The gateway cannot know."""
        assert isinstance(self._outcome(stand, Situation.DROPS_BEFORE_ACCEPTING), Ambiguous)
        assert stand.accepted(KEYS[0]) == 0

    def test_what_is_not_one_plain_address_never_reaches_the_wire(self, stand: Stand) -> None:
        """``gateways.envelopes.unsendable`` sees to it."""
        for address in NOT_ONE_ADDRESS:
            outcome = self._outcome(stand, Situation.ACCEPTS, envelope(recipient=address))
            assert isinstance(outcome, Refused), address
        assert stand.arrivals(KEYS[0]) == 0

    def test_names_with_commas_quotes_and_emoji_stay_one_recipient(self, stand: Stand) -> None:
        """A name is quoted for its place on the wire, and never read as an address."""
        for number, name in enumerate(('Doe, Jo "JD"', "Zoë 🎉; b", "O'Neil\\", "<x@y.test>, z")):
            sent = envelope(f"customer_digest:2026-W42:name-{number}", name=name)
            assert isinstance(self._outcome(stand, Situation.ACCEPTS, sent), Accepted), name
            assert list(stand.recipients(sent.operation_key)) == ["reader@example.test"], name

    def test_details_show_no_recipient_and_no_credential_in_any_encoding(self, stand: Stand) -> None:
        """A provider's words are sanitised before they are kept: they often quote both."""
        hidden = [
            form.lower()
            for secret in ("very.personal", *stand.secrets)
            for form in (
                secret,
                quote(secret, safe=""),
                base64.b64encode(secret.encode()).decode().rstrip("="),
            )
        ]
        for situation in (
            Situation.REFUSES_THE_RECIPIENT,
            Situation.REFUSES_THE_ACCOUNT,
            Situation.THROTTLES,
        ):
            if situation not in self.cannot:
                sent = envelope(recipient="very.personal@example.test")
                shown = repr(self._outcome(stand, situation, sent)).lower()
                assert not [form for form in hidden if form in shown], situation

    def test_the_same_message_again_is_taken_once_where_keys_replay(self, stand: Stand) -> None:
        """Same key, same bytes: the first answer again."""
        self._need(stand.gateway().capabilities.idempotency is Idempotency.REPLAYS, "its keys replay nothing")
        first, second = (self._outcome(stand, Situation.ACCEPTS) for _ in range(2))
        assert isinstance(first, Accepted)
        assert isinstance(second, Accepted)
        assert first.message_id == second.message_id
        assert stand.accepted(KEYS[0]) == 1

    def test_other_bytes_under_a_known_key_are_an_alarm_where_keys_replay(self, stand: Stand) -> None:
        """Never a second mail, and never a new key."""
        self._need(stand.gateway().capabilities.idempotency is Idempotency.REPLAYS, "its keys replay nothing")
        self._outcome(stand, Situation.ACCEPTS)
        changed = envelope()
        changed = replace(changed, message=replace(changed.message, text="changed"))
        outcome = self._outcome(stand, Situation.ACCEPTS, changed)
        assert isinstance(outcome, Ambiguous)
        assert outcome.integrity
        assert stand.accepted(KEYS[0]) == 1

    def test_a_look_up_finds_what_was_taken_and_nothing_else(self, stand: Stand) -> None:
        """Also what was taken without an answer."""
        self._need(stand.gateway().capabilities.look_up, "it cannot be asked by key")
        for key in KEYS:
            self._outcome(stand, Situation.DROPS_AFTER_ACCEPTING, envelope(key))
            assert isinstance(_look_up(stand, key), Found)
        assert _look_up(stand, "customer_digest:2026-W42:nobody") == Absent()

    def test_each_message_of_a_batch_has_its_own_outcome_and_one_recipient(self, stand: Stand) -> None:
        """In the order of the call; what cannot be sent is no other message's fault."""
        self._need(stand.gateway().capabilities.batch_size > 1, "it takes one message in a call")
        sent = [envelope(f"customer_digest:2026-W42:batch-{n}", f"reader-{n}@example.test") for n in range(3)]
        sent[1] = replace(sent[1], recipient="a@b.test, c@d.test")
        found = _with(stand, lambda gateway: cast(BatchGateway, gateway).send_batch(sent, "batch-1"))
        assert not isinstance(found, BatchRefused)
        assert [type(outcome) for outcome in found] == [Accepted, Refused, Accepted]
        assert [stand.accepted(one.operation_key) for one in sent] == [1, 0, 1]
        for one in (sent[0], sent[2]):
            assert list(stand.recipients(one.operation_key)) == [one.recipient]

    def _outcome(self, stand: Stand, situation: Situation, sent: Envelope | None = None) -> Outcome:
        if situation in self.cannot:
            raise unittest.SkipTest(f"{situation}: {self.cannot[situation]}")
        stand.arrange(situation)
        return _with(stand, lambda gateway: gateway.send(sent or envelope()))

    def _need(self, can: bool, why_not: str) -> None:
        if not can:
            raise unittest.SkipTest(why_not)


def _look_up(stand: Stand, key: str) -> LookUp:
    return _with(stand, lambda gateway: gateway.look_up(key))


def _with(stand: Stand, act: Callable[[Gateway], Awaitable[T]]) -> T:
    async def entered() -> T:
        async with stand.gateway() as gateway:
            return await act(gateway)

    return asyncio.run(entered())
