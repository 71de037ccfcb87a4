import asyncio

import pytest

from digest_pipeline.gateways.base import Capabilities, Idempotency
from digest_pipeline.gateways.sandbox import SandboxGateway
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.outcomes import Absent, Accepted, AccountRefused, Ambiguous, Found, LookUpFailed
from digest_pipeline_tests.harness.sandbox import (
    envelope,
    envelopes,
    gateway_to,
    keyless,
    look_up,
    send,
    send_batch,
)

KEY = envelope().operation_key


def test_a_replaying_provider_repeats_its_first_answer(sandbox):
    first, second = send(gateway_to(sandbox), envelope(), envelope())
    assert second == Accepted(first.message_id, replayed=True)
    assert sandbox.oracle().accepted_count() == 1


def test_the_same_key_with_other_bytes_is_an_integrity_alarm_and_is_not_accepted(sandbox):
    """CLS-11."""
    _, second = send(gateway_to(sandbox), envelope(), envelope(text="changed"))
    assert isinstance(second, Ambiguous)
    assert second.integrity
    assert sandbox.oracle().accepted_count() == 1


def test_the_same_key_still_in_flight_is_ambiguous_without_alarm(sandbox):
    """CLS-11."""

    async def two_at_once():
        async with gateway_to(sandbox) as gateway:
            first = asyncio.create_task(gateway.send(envelope()))
            await asyncio.to_thread(sandbox.control.wait, accepted=1)
            second = await gateway.send(envelope())
            await asyncio.to_thread(sandbox.control.release)
            return await first, second

    sandbox.control.script(Rule(Fault.HELD_AFTER_ACCEPT, next=1))
    first, second = asyncio.run(two_at_once())
    assert isinstance(first, Accepted)
    assert isinstance(second, Ambiguous)
    assert not second.integrity
    assert sandbox.oracle().accepted_count() == 1


def test_a_refusing_provider_says_the_key_was_taken_without_the_id(sandbox):
    sandbox.change(idempotency=Idempotency.REFUSES)
    _, second = send(gateway_to(sandbox), envelope(), envelope())
    assert second == Accepted(None, replayed=True)
    assert sandbox.oracle().accepted_count() == 1


def test_without_keys_a_repeat_is_a_duplicate_that_the_oracle_shows(sandbox):
    send(keyless(sandbox), envelope(), envelope())
    assert list(sandbox.oracle().duplicates()) == [(KEY, 2)]


def test_past_its_lifetime_a_key_protects_nothing(sandbox):
    """DUP-34."""
    sandbox.change(key_lifetime=0.0)
    send(gateway_to(sandbox), envelope(), envelope())
    assert list(sandbox.oracle().duplicates()) == [(KEY, 2)]


def test_a_batch_repeats_and_refuses_by_each_messages_own_key(sandbox):
    send(gateway_to(sandbox), envelopes(3)[1])
    outcomes = send_batch(gateway_to(sandbox), envelopes(3))
    assert [outcome.replayed for outcome in outcomes] == [False, True, False]
    assert sandbox.oracle().accepted_count() == 3


def test_a_batch_and_a_single_message_have_the_same_payload_hash(sandbox):
    gateway = keyless(sandbox)
    send(gateway, envelope())
    send_batch(keyless(sandbox), [envelope()])
    one, other = sandbox.oracle().acceptances(KEY)
    assert one.body_hash == other.body_hash


def test_a_look_up_finds_an_accepted_key_and_not_another(sandbox):
    (outcome,) = send(gateway_to(sandbox), envelope())
    assert look_up(gateway_to(sandbox), KEY) == Found(outcome.message_id)
    assert look_up(gateway_to(sandbox), "customer_digest:2026-W42:customer-2") == Absent()


@pytest.mark.parametrize("key", ["a%2Fb:c:d%20e", "d:p:t%3A1/c%2B&x=1", "#" + "0" * 64])
def test_a_look_up_asks_about_exactly_this_key(sandbox, key):
    sent = envelope()
    object.__setattr__(sent, "operation_key", key)
    send(gateway_to(sandbox), sent)
    assert list(sandbox.oracle().accepted_keys()) == [key]
    assert isinstance(look_up(gateway_to(sandbox), key), Found)


@pytest.mark.parametrize("setting", [{"visibility_delay": 3600.0}, {"retention": 0.0}])
def test_a_look_up_sees_nothing_before_the_visibility_delay_or_after_the_retention(sandbox, setting):
    sandbox.change(**setting)
    send(gateway_to(sandbox), envelope())
    assert look_up(gateway_to(sandbox), KEY) == Absent()


def test_a_look_up_that_is_switched_off_answers_nothing(sandbox):
    sandbox.change(look_up=False)
    assert isinstance(look_up(gateway_to(sandbox), KEY), LookUpFailed)


@pytest.mark.parametrize(
    "fault",
    [
        Fault.RESET_AFTER_ACCEPT,
        Fault.HTML_200_AFTER_ACCEPT,
        Fault.SERVER_ERROR_500_AFTER_ACCEPT,
        Fault.THROTTLED_429,
    ],
)
def test_a_look_up_without_a_readable_answer_says_nothing_and_is_asked_once(sandbox, fault):
    sandbox.control.script(Rule(fault, next=1, route="look_up"))
    outcome = look_up(gateway_to(sandbox), KEY)
    assert isinstance(outcome, LookUpFailed)
    assert sandbox.control.statistics()["arrivals"] == 1


def test_a_look_up_with_a_revoked_key_is_not_an_absence(sandbox):
    assert isinstance(look_up(gateway_to(sandbox, api_key="revoked"), KEY), LookUpFailed)


def test_without_capability_no_key_is_sent(sandbox):
    gateway = gateway_to(sandbox, Capabilities())
    send(gateway, envelope(), envelope())
    assert list(sandbox.oracle().duplicates()) == [(KEY, 2)]


def test_the_account_differs_by_key_and_by_host():
    accounts = {
        SandboxGateway(url, key).account
        for url in ("http://one.test", "http://two.test")
        for key in ("k1", "k2")
    }
    assert len(accounts) == 4


def test_unauthorised_is_the_account_for_a_whole_batch(sandbox):
    outcomes = send_batch(gateway_to(sandbox, api_key="revoked"), envelopes(2))
    assert [type(outcome) for outcome in outcomes] == [AccountRefused] * 2
