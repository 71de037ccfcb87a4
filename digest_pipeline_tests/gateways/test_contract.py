"""What holds for every registered gateway, against its real or emulated provider."""

import asyncio
import base64
import itertools
from dataclasses import replace
from urllib.parse import quote

import pytest

from digest_pipeline.gateways.base import BatchKey, BatchRefused, Idempotency
from digest_pipeline.gateways.registry import KINDS
from digest_pipeline.outcomes import (
    Absent,
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    Found,
    LookUpFailed,
    NotSent,
    Refused,
    Stage,
    Throttled,
)
from digest_pipeline_tests.gateways.situations import Situation
from digest_pipeline_tests.gateways.stands import (
    RETRY_AFTER,
    SPOILING,
    STANDS,
    SUPPRESSED,
    digest,
    digests,
)
from digest_pipeline_tests.harness.raw_http import answer, raw_server

AFTER_ACCEPTING = [
    Situation.RESETS_AFTER_ACCEPTING,
    Situation.SILENT_AFTER_ACCEPTING,
    Situation.UNREADABLE_AFTER_ACCEPTING,
    Situation.CUT_OFF_AFTER_ACCEPTING,
    Situation.A_PAGE_AFTER_ACCEPTING,
    Situation.BAD_GATEWAY_AFTER_ACCEPTING,
    Situation.FAILS_AFTER_ACCEPTING,
]
REFUSING = [
    Situation.REFUSES_THE_RECIPIENT,
    Situation.REFUSES_THE_ACCOUNT,
    Situation.THROTTLES,
    Situation.FAILS_AFTER_ACCEPTING,
]
KEY = digest().operation_key
HARD_KEYS = [
    "portfolio_report:2026-10-14:a%2Fb%3A%25/customer%2B7%26x%3D1",
    "customer_digest:2026-W42:" + "c" * 231,
    "#" + "0f" * 32,
]
PAGE = b"<html><title>Sign in</title></html>"


def anything(capabilities):
    return True


def stands(wanted=anything, *situations, http=False):
    """Run a test with each kind whose capabilities are wanted and whose stand can arrange the situations."""
    kinds = [
        name
        for name, kind in sorted(KINDS.items())
        if wanted(kind.capabilities)
        and name in STANDS
        and not STANDS[name].cannot.keys() & set(situations)
        and (STANDS[name].http or not http)
    ]
    return pytest.mark.parametrize("stand", kinds, indirect=True)


def each_situation(situations):
    """Run a test with each situation and each kind whose stand can arrange it."""
    cases = [
        pytest.param(name, situation, id=f"{name}-{situation.name.lower()}")
        for name, situation in itertools.product(sorted(KINDS), situations)
        if name in STANDS and situation not in STANDS[name].cannot
    ]
    return pytest.mark.parametrize(("stand", "situation"), cases, indirect=["stand"])


def run(stand, act):
    async def entered():
        async with stand.gateway() as gateway:
            return await act(gateway)

    return asyncio.run(entered())


def send(stand, *envelopes):
    async def each(gateway):
        return [await gateway.send(envelope) for envelope in envelopes]

    return run(stand, each)


def outcome_of(stand, situation, envelope=None):
    stand.arrange(situation)
    (outcome,) = send(stand, envelope or digest())
    return outcome


def send_batch(stand, envelopes, batch_key=None):
    """Send in one call, under a key where the provider's idempotency is per call."""
    return run(stand, lambda gateway: gateway.send_batch(envelopes, batch_key))


def look_up(stand, key):
    return run(stand, lambda gateway: gateway.look_up(key))


def raw_outcome(stand, *answers):
    """Return what a message to a server that says what it is told ends as."""

    async def act():
        async with raw_server(answers) as server, stand.gateway_to(server.url) as gateway:
            outcome = await gateway.send(digest())
            assert len(server.requests) == 1
            return outcome

    return asyncio.run(act())


def replays(capabilities):
    return capabilities.idempotency is Idempotency.REPLAYS


def takes_batches(capabilities):
    return capabilities.batch_size > 1


def can_be_asked(capabilities):
    return capabilities.look_up


def test_every_registered_kind_has_a_stand():
    assert set(STANDS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(STANDS))
def test_a_stand_says_why_it_cannot_arrange_a_situation_and_no_stand_excuses_the_basics(kind):
    cannot = STANDS[kind].cannot
    assert all(len(reason) > 10 for reason in cannot.values())
    assert Situation.ACCEPTS not in cannot
    assert (Situation.REFUSES_THE_RECIPIENT not in cannot) == STANDS[kind].refuses


@stands()
def test_a_clear_yes_is_accepted_once_with_its_id(stand):
    outcome = outcome_of(stand, Situation.ACCEPTS)
    assert isinstance(outcome, Accepted)
    assert outcome.message_id
    assert stand.accepted(KEY) == 1
    assert stand.with_other_than_one_recipient() == 0


@stands(anything, Situation.REFUSES_THE_RECIPIENT)
def test_a_refused_recipient_is_permanent(stand):
    outcome = outcome_of(stand, Situation.REFUSES_THE_RECIPIENT)
    assert isinstance(outcome, Refused)
    assert outcome.failure_class is FailureClass.RECIPIENT
    assert stand.accepted(KEY) == 0


@stands(anything, Situation.HAS_SUPPRESSED_THE_RECIPIENT)
def test_an_address_on_the_providers_own_list_is_suppressed_here_too(stand):
    outcome = outcome_of(stand, Situation.HAS_SUPPRESSED_THE_RECIPIENT, digest(recipient=SUPPRESSED))
    assert isinstance(outcome, Refused)
    assert (outcome.failure_class, outcome.suppressed) == (FailureClass.RECIPIENT, True)


@stands(anything, Situation.REFUSES_THE_ACCOUNT)
def test_a_refused_account_is_nobodys_failure(stand):
    assert isinstance(outcome_of(stand, Situation.REFUSES_THE_ACCOUNT), AccountRefused)
    assert stand.accepted(KEY) == 0


@stands(anything, Situation.THROTTLES)
def test_throttling_is_no_failure(stand):
    assert isinstance(outcome_of(stand, Situation.THROTTLES), Throttled)
    assert stand.accepted(KEY) == 0


@stands(anything, Situation.THROTTLES, Situation.THROTTLES_UNTIL_A_DATE, http=True)
def test_a_throttling_provider_is_heard_in_seconds_and_as_a_date_and_without_a_time(stand):
    """CLS-08."""
    seconds = outcome_of(stand, Situation.THROTTLES)
    date = outcome_of(stand, Situation.THROTTLES_UNTIL_A_DATE)
    silent = raw_outcome(stand, answer(429, b"{}"))
    assert seconds.retry_after == RETRY_AFTER
    assert RETRY_AFTER - 1 <= date.retry_after <= RETRY_AFTER + 1
    assert isinstance(silent, Throttled)
    assert silent.retry_after is None


@stands(anything, Situation.IS_UNREACHABLE)
def test_no_connection_proves_that_nothing_was_sent(stand):
    """DUP-33 (d)."""
    outcome = outcome_of(stand, Situation.IS_UNREACHABLE)
    assert isinstance(outcome, NotSent)
    assert (outcome.failure_class, outcome.stage) == (FailureClass.CONNECT, Stage.BEFORE_WIRE)


@each_situation(AFTER_ACCEPTING)
def test_what_may_have_been_accepted_is_ambiguous_and_was_tried_once(stand, situation):
    """DUP-19, DUP-33 (a) and (b): nothing below us tries again."""
    assert isinstance(outcome_of(stand, situation), Ambiguous)
    assert stand.accepted(KEY) == 1
    assert stand.arrivals(KEY) == 1


@stands(anything, Situation.RESETS_BEFORE_ACCEPTING)
def test_what_left_is_ambiguous_even_where_nothing_was_accepted(stand):
    assert isinstance(outcome_of(stand, Situation.RESETS_BEFORE_ACCEPTING), Ambiguous)
    assert (stand.accepted(KEY), stand.arrivals(KEY)) == (0, 1)


@pytest.mark.parametrize(
    "address",
    [
        "a@example.test, b@example.test",
        "a@example.test;b@example.test",
        "a@example.test\r\nBcc: b@example.test",
        "A <a@example.test>",
        '"victim@evil.test x"@example.test',
        '"a> ORCPT=z"@example.test',
        '"a b"@example.test',
    ],
)
@stands()
def test_what_is_not_one_plain_address_never_reaches_the_wire(stand, address):
    """SEC-04, SEC-12."""
    sent = digest(recipient=address)
    (outcome,) = send(stand, sent)
    assert isinstance(outcome, Refused)
    assert outcome.failure_class is FailureClass.RECIPIENT
    assert stand.arrivals(sent.operation_key) == 0


@stands()
def test_a_local_part_outside_ascii_goes_where_the_capability_says_so_and_nowhere_else(stand):
    """INP-04 (c)."""
    before, umlaut, after = digest("1"), digest("2", recipient="jörg@example.test"), digest("3")
    outcomes = send(stand, before, umlaut, after)
    expected = Accepted if stand.gateway().capabilities.smtputf8 else Refused
    assert [type(outcome) for outcome in outcomes] == [Accepted, expected, Accepted]
    assert stand.arrivals(umlaut.operation_key) == (1 if expected is Accepted else 0)


@stands()
def test_names_with_commas_quotes_and_emoji_stay_one_recipient(stand):
    """SEC-04."""
    for number, name in enumerate(['Doe, Jo "JD"', "Zoë 🎉; b", "O'Neil\\", "<x>, y"]):
        sent = digest(str(number))
        (outcome,) = send(stand, replace(sent, message=replace(sent.message, to_name=name)))
        assert isinstance(outcome, Accepted)
    assert stand.with_other_than_one_recipient() == 0


@pytest.mark.parametrize("key", HARD_KEYS, ids=["escapes", "long", "hashed"])
@stands()
def test_every_operation_key_can_be_sent(stand, key):
    (outcome,) = send(stand, keyed(digest(), key))
    assert isinstance(outcome, Accepted)
    assert stand.accepted(key) == 1


def keyed(envelope, key):
    headers = tuple(
        (name, key if name == "X-Operation-Key" else value) for name, value in envelope.message.headers
    )
    return replace(envelope, operation_key=key, message=replace(envelope.message, headers=headers))


@each_situation(REFUSING)
def test_details_show_no_recipient_and_no_credential_in_any_encoding(stand, situation):
    sent = digest(recipient="very.personal@example.test")
    shown = repr(outcome_of(stand, situation, sent)).lower()
    for secret in filter(None, ("very.personal", *stand.secrets, ":".join(stand.secrets))):
        encoded = base64.b64encode(secret.encode()).decode()
        for form in (secret, quote(secret, safe=""), encoded, encoded.rstrip("=")):
            assert form.lower() not in shown


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@stands(http=True)
def test_a_redirect_is_never_followed_and_halts(stand, status):
    moved = answer(status, PAGE, "Location: http://127.0.0.1:9/elsewhere\r\n")
    assert isinstance(raw_outcome(stand, moved), AccountRefused)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 407, 422])
@stands(http=True)
def test_a_page_from_something_in_between_halts_and_fails_nobody(stand, status):
    assert isinstance(raw_outcome(stand, answer(status, PAGE)), AccountRefused)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 408, 500, 502, 503, 504, 599])
@stands(http=True)
def test_a_page_that_may_hide_an_acceptance_is_ambiguous(stand, status):
    assert isinstance(raw_outcome(stand, answer(status, b"" if status == 204 else PAGE)), Ambiguous)


@stands(replays)
def test_the_same_message_again_gets_the_first_answer_and_is_accepted_once(stand):
    first, second = send(stand, digest(), digest())
    assert isinstance(second, Accepted)
    assert second.message_id == first.message_id
    assert stand.accepted(KEY) == 1


@stands(lambda capabilities: capabilities.idempotency is Idempotency.REFUSES)
def test_a_refused_repeat_was_accepted_before_without_an_id(stand):
    _, second = send(stand, digest(), digest())
    assert second == Accepted(None, replayed=True)
    assert stand.accepted(KEY) == 1


@stands(replays)
def test_other_bytes_under_the_same_key_are_an_integrity_alarm(stand):
    """CLS-11."""
    _, second = send(stand, digest(), digest(text="changed"))
    assert isinstance(second, Ambiguous)
    assert second.integrity
    assert stand.accepted(KEY) == 1


@pytest.mark.parametrize("key", [KEY, *HARD_KEYS], ids=["plain", "escapes", "long", "hashed"])
@stands(can_be_asked, Situation.RESETS_AFTER_ACCEPTING)
def test_a_look_up_finds_what_was_accepted_and_nothing_else(stand, key):
    outcome_of(stand, Situation.RESETS_AFTER_ACCEPTING, keyed(digest(), key))
    found = look_up(stand, key)
    assert isinstance(found, Found)
    assert found.message_id
    assert found.copies == 1
    assert look_up(stand, digest("another").operation_key) == Absent()


@stands(lambda capabilities: can_be_asked(capabilities) and capabilities.idempotency is Idempotency.NONE)
def test_a_look_up_counts_the_copies(stand):
    send(stand, digest(), digest())
    assert look_up(stand, KEY).copies == 2


@stands(can_be_asked, Situation.FAILS_TO_BE_ASKED)
def test_a_look_up_without_a_readable_answer_says_nothing(stand):
    send(stand, digest())
    stand.arrange(Situation.FAILS_TO_BE_ASKED)
    assert isinstance(look_up(stand, KEY), LookUpFailed)


@stands(takes_batches)
def test_each_message_of_a_batch_has_its_own_outcome_and_one_recipient(stand):
    """CLS-06, SEC-04."""
    sent = [*digests(2), digest("two", recipient="a@b.test, c@d.test"), digest("last")]
    stand.arrange(Situation.REFUSES_THE_RECIPIENT, sent[1].operation_key)
    outcomes = send_batch(stand, sent, "batch-1")
    assert [type(outcome) for outcome in outcomes] == [Accepted, Refused, Refused, Accepted]
    assert len({outcomes[0].message_id, outcomes[3].message_id}) == 2
    assert [stand.accepted(e.operation_key) for e in sent] == [1, 0, 0, 1]
    assert stand.with_other_than_one_recipient() == 0


@stands(takes_batches)
def test_a_full_batch_is_taken(stand):
    sent = digests(stand.gateway().capabilities.batch_size)
    outcomes = send_batch(stand, sent, "batch-1")
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    assert len({outcome.message_id for outcome in outcomes}) == len(sent)


@stands(takes_batches, Situation.SHUFFLES_A_BATCH)
def test_answers_in_another_order_reach_their_own_message(stand):
    """DUP-19 (d)."""
    sent = digests(3)
    stand.arrange(Situation.SHUFFLES_A_BATCH)
    shuffled = send_batch(stand, sent, "batch-1")
    if can_be_asked(stand.gateway().capabilities):
        assert [outcome.message_id for outcome in shuffled] == [
            look_up(stand, e.operation_key).message_id for e in sent
        ]
    assert {type(outcome) for outcome in shuffled} == {Accepted}


@stands(takes_batches, Situation.HIDES_THE_LAST_OF_A_BATCH)
def test_a_missing_answer_is_never_a_verdict(stand):
    """DUP-19 (b)."""
    sent = digests(3)
    stand.arrange(Situation.HIDES_THE_LAST_OF_A_BATCH)
    outcomes = send_batch(stand, sent, "batch-1")
    assert isinstance(outcomes[-1], Ambiguous)
    assert {type(outcome) for outcome in outcomes} <= {Accepted, Ambiguous}
    assert [stand.accepted(e.operation_key) for e in sent] == [1, 1, 1]


@stands(takes_batches, Situation.UNREADABLE_AFTER_ACCEPTING)
def test_an_unreadable_answer_leaves_the_whole_batch_in_doubt(stand):
    """DUP-19 (a) and (c)."""
    for place, situation in enumerate(
        (Situation.UNREADABLE_AFTER_ACCEPTING, Situation.A_PAGE_AFTER_ACCEPTING)
    ):
        sent = [digest(f"{place}-{number}") for number in range(3)]
        stand.arrange(situation)
        outcomes = send_batch(stand, sent, f"batch-{place}")
        assert [type(outcome) for outcome in outcomes] == [Ambiguous] * 3


@stands(takes_batches, Situation.REFUSES_THE_WHOLE_CALL)
def test_a_call_refused_as_a_whole_is_no_verdict_about_any_of_its_messages(stand):
    sent = [*digests(2), digest("spoils", recipient=SPOILING)]
    found = send_batch(stand, sent, "batch-1")
    assert isinstance(found, BatchRefused)
    assert isinstance(found.alone, Refused)
    assert [stand.accepted(e.operation_key) for e in sent] == [0, 0, 0]
    halves = send_batch(stand, sent[:2], "batch-2"), send_batch(stand, sent[2:], "batch-3")
    assert [type(outcome) for outcome in halves[0]] == [Accepted, Accepted]
    assert isinstance(halves[1], BatchRefused)


@stands(takes_batches)
def test_a_batch_holds_each_key_once_and_may_be_empty(stand):
    with pytest.raises(ValueError, match="each operation key once"):
        send_batch(stand, [digest(), digest()], "batch-1")
    assert send_batch(stand, [], "batch-1") == []


@stands(lambda capabilities: takes_batches(capabilities) and replays(capabilities))
def test_the_same_batch_again_is_accepted_once(stand):
    first, second = (send_batch(stand, digests(3), "batch-1") for _ in range(2))
    assert [outcome.message_id for outcome in first] == [outcome.message_id for outcome in second]
    assert [stand.accepted(e.operation_key) for e in digests(3)] == [1, 1, 1]


@stands(lambda capabilities: capabilities.batch_key is BatchKey.PER_BATCH)
def test_other_messages_under_the_key_of_a_batch_are_an_integrity_alarm(stand):
    """CLS-11."""
    send_batch(stand, digests(3), "batch-1")
    outcomes = send_batch(stand, digests(2), "batch-1")
    assert [(type(outcome), outcome.integrity) for outcome in outcomes] == [(Ambiguous, True)] * 2


@stands()
def test_the_account_is_a_short_digest_that_is_stable(stand):
    account = stand.gateway().account
    assert account == stand.gateway().account
    assert 8 <= len(account) <= 16
    assert account.isalnum()


@stands()
def test_repr_shows_no_credential(stand):
    shown = repr(stand.gateway())
    assert not [secret for secret in stand.secrets if secret in shown]
