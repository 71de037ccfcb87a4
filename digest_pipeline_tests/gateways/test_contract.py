"""What holds for every registered gateway, against its real or emulated provider."""

import asyncio

import pytest

from digest_pipeline.gateways.registry import KINDS
from digest_pipeline.outcomes import (
    Absent,
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    Found,
    NotSent,
    Refused,
    Stage,
    Throttled,
)
from digest_pipeline_tests.gateways.stands import STANDS, Situation
from digest_pipeline_tests.harness.sandbox import envelope

AFTER_ACCEPTING = [
    Situation.RESETS_AFTER_ACCEPTING,
    Situation.SILENT_AFTER_ACCEPTING,
    Situation.UNREADABLE_AFTER_ACCEPTING,
    Situation.FAILS_AFTER_ACCEPTING,
]


@pytest.fixture(params=sorted(KINDS))
def stand(request, tmp_path):
    with STANDS[request.param](tmp_path) as stand:
        yield stand


def outcome_of(stand, situation, sent=None):
    async def run():
        async with stand.gateway() as gateway:
            return await gateway.send(sent or envelope())

    stand.arrange(situation)
    return asyncio.run(run())


def look_up(stand, key):
    async def run():
        async with stand.gateway() as gateway:
            return await gateway.look_up(key)

    return asyncio.run(run())


def test_every_registered_kind_has_a_stand():
    assert set(STANDS) == set(KINDS)


def test_a_clear_yes_is_accepted_once_with_its_id(stand):
    outcome = outcome_of(stand, Situation.ACCEPTS)
    assert isinstance(outcome, Accepted)
    assert outcome.message_id
    assert stand.accepted(envelope().operation_key) == 1


def test_a_refused_recipient_is_permanent(stand):
    outcome = outcome_of(stand, Situation.REFUSES_THE_RECIPIENT)
    assert isinstance(outcome, Refused)
    assert outcome.failure_class is FailureClass.RECIPIENT


def test_a_refused_account_is_nobodys_failure(stand):
    assert isinstance(outcome_of(stand, Situation.REFUSES_THE_ACCOUNT), AccountRefused)


def test_throttling_is_no_failure(stand):
    assert isinstance(outcome_of(stand, Situation.THROTTLES), Throttled)


def test_no_connection_proves_that_nothing_was_sent(stand):
    outcome = outcome_of(stand, Situation.IS_UNREACHABLE)
    assert isinstance(outcome, NotSent)
    assert (outcome.failure_class, outcome.stage) == (FailureClass.CONNECT, Stage.BEFORE_WIRE)


@pytest.mark.parametrize("situation", AFTER_ACCEPTING, ids=lambda situation: situation.name.lower())
def test_what_may_have_been_accepted_is_ambiguous(stand, situation):
    assert isinstance(outcome_of(stand, situation), Ambiguous)
    assert stand.accepted(envelope().operation_key) == 1


def test_details_name_no_recipient(stand):
    sent = envelope(recipient="very.personal@example.test")
    for situation in (Situation.REFUSES_THE_RECIPIENT, Situation.REFUSES_THE_ACCOUNT, Situation.THROTTLES):
        assert "personal" not in repr(outcome_of(stand, situation, sent))


def test_a_look_up_finds_what_was_accepted_and_nothing_else(stand):
    if not stand.gateway().capabilities.look_up:
        pytest.skip("this provider cannot be asked")
    outcome_of(stand, Situation.RESETS_AFTER_ACCEPTING)
    assert isinstance(look_up(stand, envelope().operation_key), Found)
    assert look_up(stand, envelope("another").operation_key) == Absent()


def test_the_account_is_a_short_digest_that_is_stable(stand):
    account = stand.gateway().account
    assert account == stand.gateway().account
    assert 8 <= len(account) <= 16
    assert account.isalnum()


def test_repr_shows_no_credential(stand):
    assert "key" not in repr(stand.gateway()).lower()
