import pytest

from digest_pipeline.lab.sandbox.faults import HARSH_FAULTS, Fault, Rule
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Refused,
    Stage,
    Throttled,
)
from digest_pipeline_tests.harness.sandbox import (
    HASTY,
    envelope,
    envelopes,
    gateway_to,
    keyless,
    look_up,
    running_sandbox,
    send,
    send_batch,
)

OUTCOMES = {
    Fault.SLOW: Accepted,
    Fault.THROTTLED_429: Throttled,
    Fault.THROTTLED_429_DATE: Throttled,
    Fault.UNAVAILABLE_503: NotSent,
    Fault.RESET_BEFORE_ACCEPT: Ambiguous,
    Fault.RESET_AFTER_ACCEPT: Ambiguous,
    Fault.TIMEOUT_AFTER_ACCEPT: Ambiguous,
    Fault.HELD_AFTER_ACCEPT: Ambiguous,
    Fault.BAD_GATEWAY_502_AFTER_ACCEPT: Ambiguous,
    Fault.TRUNCATED_JSON_AFTER_ACCEPT: Ambiguous,
    Fault.CUT_BODY_AFTER_ACCEPT: Ambiguous,
    Fault.HTML_200_AFTER_ACCEPT: Ambiguous,
    Fault.INVALID_RECIPIENT_422: Refused,
    Fault.UNAUTHORIZED_401: AccountRefused,
    Fault.SERVER_ERROR_500_BEFORE_ACCEPT: Ambiguous,
    Fault.SERVER_ERROR_500_AFTER_ACCEPT: Ambiguous,
    Fault.SHORT_BATCH_ANSWER: Accepted,
    Fault.SHUFFLED_BATCH_ANSWER: Accepted,
}


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_yields_its_documented_outcome_and_the_store_knows_better(sandbox, fault):
    sandbox.control.script(Rule(fault, next=1, delay=0.05))
    (outcome,) = send(gateway_to(sandbox, limits=HASTY), envelope())
    assert type(outcome) is OUTCOMES[fault]
    assert sandbox.oracle().accepted_count() == (1 if fault.accepts else 0)
    assert sandbox.oracle().faults_hit() == {fault: 1}


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_lets_the_key_pass_afterwards_and_a_replayed_key_is_accepted_once(sandbox, fault):
    sandbox.control.script(Rule(fault, keys=[envelope().operation_key], delay=0.05))
    _, second = send(gateway_to(sandbox, limits=HASTY), envelope(), envelope())
    assert isinstance(second, Accepted)
    assert second.replayed is fault.accepts
    assert list(sandbox.oracle().duplicates()) == []
    assert sandbox.oracle().accepted_count() == 1


def test_502_and_reset_after_storing_are_unknown_while_503_and_refused_connections_are_not(tmp_path):
    """DUP-33."""
    with running_sandbox(tmp_path) as own:
        own.control.script(
            Rule(Fault.BAD_GATEWAY_502_AFTER_ACCEPT, next=1),
            Rule(Fault.RESET_AFTER_ACCEPT, next=1),
            Rule(Fault.UNAVAILABLE_503, next=1),
        )
        bad_gateway, reset, unavailable = send(gateway_to(own), *envelopes(3))
        own.stop()
        (refused,) = send(gateway_to(own), envelope())
    assert isinstance(bad_gateway, Ambiguous)
    assert isinstance(reset, Ambiguous)
    assert unavailable == NotSent(FailureClass.TRANSIENT, unavailable.detail, Stage.AFTER_WIRE)
    assert refused == NotSent(FailureClass.CONNECT, refused.detail, Stage.BEFORE_WIRE)
    assert own.oracle().accepted_count() == 2
    assert own.oracle().verdicts() == {"accepted": 2, "fault": 1}


def test_a_reply_that_comes_too_late_is_unknown_and_the_look_up_finds_the_message(sandbox):
    """DUP-16."""
    sandbox.control.script(Rule(Fault.SLOW, next=1, delay=60))
    (outcome,) = send(keyless(sandbox, HASTY), envelope())
    assert outcome == Ambiguous("no readable answer: TimeoutError")
    assert look_up(keyless(sandbox), envelope().operation_key).message_id
    assert sandbox.oracle().accepted_count() == 1


@pytest.mark.parametrize(
    "fault",
    [Fault.TRUNCATED_JSON_AFTER_ACCEPT, Fault.CUT_BODY_AFTER_ACCEPT, Fault.HTML_200_AFTER_ACCEPT],
)
def test_an_unreadable_200_is_unknown_for_all_three_of_a_batch(sandbox, fault):
    """DUP-19 (a) and (c)."""
    sandbox.control.script(Rule(fault, next=1))
    outcomes = send_batch(gateway_to(sandbox), envelopes(3))
    assert [type(outcome) for outcome in outcomes] == [Ambiguous] * 3
    assert sandbox.oracle().accepted_count() == 3


def test_a_missing_result_is_unknown_for_its_own_message_only(sandbox):
    """DUP-19 (b): the two that came are matched by key."""
    sandbox.control.script(Rule(Fault.SHORT_BATCH_ANSWER, next=1))
    outcomes = send_batch(gateway_to(sandbox), envelopes(3))
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, Ambiguous]


def test_results_in_another_order_reach_their_own_message(sandbox):
    """DUP-19 (d)."""
    sandbox.control.script(Rule(Fault.SHUFFLED_BATCH_ANSWER, next=1))
    outcomes = send_batch(gateway_to(sandbox), envelopes(3))
    stored = {a.operation_key: a.message_id for a in sandbox.oracle().acceptances()}
    assert [outcome.message_id for outcome in outcomes] == [stored[e.operation_key] for e in envelopes(3)]


def test_retry_after_is_read_as_seconds_and_as_a_date(sandbox):
    """CLS-08, over the wire."""
    sandbox.control.script(
        Rule(Fault.THROTTLED_429, next=1, retry_after=90),
        Rule(Fault.THROTTLED_429_DATE, next=1, retry_after=90),
    )
    seconds, date = send(gateway_to(sandbox), *envelopes(2))
    assert seconds.retry_after == 90
    assert 89 <= date.retry_after <= 91


def test_the_providers_own_limit_answers_429_and_records_those_arrivals_apart(sandbox):
    sandbox.change(rate=0.01, burst=2)
    outcomes = send(gateway_to(sandbox), *envelopes(3))
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, Throttled]
    assert outcomes[2].retry_after > 0
    assert sandbox.oracle().throttled() == 1
    assert sandbox.oracle().attempts(envelopes(3)[2].operation_key) == 0


def test_the_bounce_domain_is_refused_and_names_no_address(sandbox):
    (outcome,) = send(gateway_to(sandbox), envelope(recipient="someone@bounce.example"))
    assert isinstance(outcome, Refused)
    assert outcome.failure_class is FailureClass.RECIPIENT
    assert "someone" not in outcome.detail


def test_a_wrong_api_key_halts(sandbox):
    (outcome,) = send(gateway_to(sandbox, api_key="revoked"), envelope())
    assert isinstance(outcome, AccountRefused)


def test_the_harsh_profile_hits_every_fault_within_two_hundred_messages(tmp_path):
    with running_sandbox(tmp_path, profile="harsh", seed=7) as own:
        for _ in range(3):
            send(gateway_to(own, limits=HASTY), *envelopes(200))
        oracle = own.oracle()
        assert set(oracle.faults_hit()) == set(HARSH_FAULTS)
        assert len(list(oracle.accepted_keys())) == 200
        assert list(oracle.duplicates()) == []


def test_a_plan_survives_the_servers_death_where_it_was(tmp_path):
    with running_sandbox(tmp_path) as own:
        own.control.script(Rule(Fault.UNAUTHORIZED_401, next=3))
        send(gateway_to(own), *envelopes(2))
        own.restart()
        outcomes = send(gateway_to(own), *envelopes(2))
    assert [type(outcome) for outcome in outcomes] == [AccountRefused, Accepted]


def test_a_batch_meets_a_fault_of_one_message_alone(sandbox):
    sandbox.control.script(Rule(Fault.INVALID_RECIPIENT_422, keys=[envelopes(3)[1].operation_key]))
    outcomes = send_batch(gateway_to(sandbox), envelopes(3))
    assert [type(outcome) for outcome in outcomes] == [Accepted, Refused, Accepted]


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE_503, Fault.THROTTLED_429, Fault.RESET_BEFORE_ACCEPT])
def test_a_batch_refused_as_a_whole_was_not_accepted_in_part(sandbox, fault):
    sandbox.control.script(Rule(fault, keys=[envelopes(3)[1].operation_key]))
    outcomes = send_batch(gateway_to(sandbox), envelopes(3))
    assert {type(outcome) for outcome in outcomes} == {OUTCOMES[fault]}
    assert sandbox.oracle().accepted_count() == 0
    assert sandbox.oracle().faults_hit() == {fault: 1}
