from itertools import product

import pytest

from digest_pipeline.delivery.retry_policy import (
    POLICY,
    THROTTLE_DEFAULT,
    Again,
    Budget,
    Evidence,
    Release,
    Sent,
    Stop,
    Unknown,
    believed,
    describe,
    is_used_up,
    retry_delay,
    settlement,
)
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Outcome,
    Proof,
    Refused,
    Stage,
    Throttled,
)
from digest_pipeline.spec import Retry
from digest_pipeline.states import HoldReason

POLICY_OF_THREE = Retry(base_seconds=30, cap_seconds=1800, max_attempts=3, max_age_hours=48)
FRESH, LAST_BY_COUNT = Budget(0, 0.0), Budget(2, 60.0)
JUST_YOUNG, LAST_BY_AGE = Budget(1, 48 * 3600 - 1.0), Budget(1, 48 * 3600.0)
BUDGETS = (FRESH, JUST_YOUNG, LAST_BY_COUNT, LAST_BY_AGE)
SOON, NEVER = Evidence(7.0), Evidence(None, HoldReason.NO_EVIDENCE)

OUTCOMES: tuple[Outcome, ...] = (
    Accepted("m-1"),
    Accepted(None, replayed=True),
    Accepted("m-1", proof=Proof.DELIVERED),
    Refused(FailureClass.RECIPIENT, "no such mailbox"),
    Refused(FailureClass.CONTENT, "too large"),
    NotSent(FailureClass.CONNECT, "refused"),
    NotSent(FailureClass.TRANSIENT, "503", Stage.AFTER_WIRE),
    Throttled("429"),
    Throttled("429", 90.0),
    Throttled("429", 0.0),
    Ambiguous("reset"),
    Ambiguous("other bytes", integrity=True),
    AccountRefused("401"),
)
EVERYTHING = list(product(OUTCOMES, (False, True), BUDGETS, (SOON, NEVER)))


def settle(outcome, ambiguous=False, budget=FRESH, evidence=SOON, policy=POLICY_OF_THREE, random=0.0):
    return settlement(
        outcome, ambiguous=ambiguous, budget=budget, policy=policy, evidence=evidence, random=random
    )


def expected(outcome, ambiguous, budget, evidence):
    """The table of section 5 of the design, said once more and differently."""
    used_up = budget in (LAST_BY_COUNT, LAST_BY_AGE)
    if isinstance(outcome, Accepted):
        return Sent
    if isinstance(outcome, Ambiguous) or ambiguous:
        return Unknown
    if isinstance(outcome, Throttled | AccountRefused):
        return Release
    if isinstance(outcome, Refused):
        return Stop
    return Stop if used_up else Again


@pytest.mark.parametrize(("outcome", "ambiguous", "budget", "evidence"), EVERYTHING)
def test_every_outcome_leads_where_the_table_says(outcome, ambiguous, budget, evidence):
    found = settle(outcome, ambiguous, budget, evidence)
    assert type(found) is expected(outcome, ambiguous, budget, evidence)


@pytest.mark.parametrize(("outcome", "budget", "evidence"), list(product(OUTCOMES, BUDGETS, (SOON, NEVER))))
def test_while_ambiguous_nothing_but_an_acceptance_leaves_unknown(outcome, budget, evidence):
    found = settle(outcome, True, budget, evidence)
    assert isinstance(found, Sent if isinstance(outcome, Accepted) else Unknown)


@pytest.mark.parametrize(("outcome", "ambiguous", "budget", "evidence"), EVERYTHING)
def test_an_attempt_is_charged_exactly_where_the_policy_table_says(outcome, ambiguous, budget, evidence):
    found = settle(outcome, ambiguous, budget, evidence)
    _, failure_class, _ = describe(outcome)
    charged = found.charged if isinstance(found, Unknown) else not isinstance(found, Release)
    assert charged is (failure_class is None or POLICY[failure_class].charged)


@pytest.mark.parametrize(("outcome", "budget"), list(product(OUTCOMES, BUDGETS)))
def test_only_an_ambiguous_answer_makes_this_attempt_a_suspect(outcome, budget):
    found = settle(outcome, True, budget)
    if isinstance(found, Unknown):
        assert found.may_have_been_sent is isinstance(outcome, Ambiguous)


@pytest.mark.parametrize("ambiguous", [False, True])
@pytest.mark.parametrize("evidence", [SOON, NEVER])
def test_other_bytes_under_our_key_are_held_for_a_person(ambiguous, evidence):
    found = settle(Ambiguous("409", integrity=True), ambiguous, evidence=evidence)
    assert found == Unknown(None, FailureClass.AMBIGUOUS, HoldReason.INTEGRITY)


def test_without_a_way_to_evidence_an_unknown_is_held_and_not_due():
    assert settle(Ambiguous("reset"), evidence=NEVER) == Unknown(
        None, FailureClass.AMBIGUOUS, HoldReason.NO_EVIDENCE
    )


def test_evidence_is_never_sought_before_it_can_be_there():
    assert settle(Ambiguous("reset"), evidence=Evidence(500.0)).delay == 500.0
    assert settle(Ambiguous("reset"), evidence=Evidence(0.0)).delay == 15.0


@pytest.mark.parametrize(("said", "waited"), [(None, THROTTLE_DEFAULT), (0.0, 0.0), (90.0, 90.0)])
def test_throttling_puts_a_row_back_for_as_long_as_the_provider_asks(said, waited):
    assert settle(Throttled("429", said)) == Release(waited)
    assert settle(Throttled("429", said), ambiguous=True).delay == waited


@pytest.mark.parametrize("failure_class", [FailureClass.CONNECT, FailureClass.TRANSIENT])
def test_the_budget_ends_by_count_and_by_age(failure_class):
    outcome = NotSent(failure_class, "not taken")
    ends = [settle(outcome, budget=budget) for budget in BUDGETS]
    assert [isinstance(end, Stop) for end in ends] == [False, False, True, True]
    assert ends[2] == ends[3] == Stop(failure_class, dead=True)


def test_a_verdict_about_the_message_ends_it_at_the_first_attempt():
    """CLS-03."""
    assert settle(Refused(FailureClass.RECIPIENT, "")) == Stop(FailureClass.RECIPIENT, dead=False)
    assert settle(Refused(FailureClass.CONTENT, "")) == Stop(FailureClass.CONTENT, dead=False)


def test_an_acceptance_keeps_the_providers_id_and_proof():
    assert settle(Accepted("m-9", proof=Proof.DELIVERED)) == Sent("m-9", Proof.DELIVERED)


@pytest.mark.parametrize(
    ("attempt", "backoff"), [(1, 30), (2, 60), (3, 120), (6, 960), (7, 1800), (50, 1800)]
)
def test_the_backoff_doubles_to_its_cap_and_jitter_takes_at_most_half(attempt, backoff):
    policy = Retry()
    assert retry_delay(policy, attempt, 0.0) == backoff / 2
    assert retry_delay(policy, attempt, 1.0) == backoff
    assert retry_delay(policy, attempt, 0.5) == backoff * 0.75


def test_the_ten_thousandth_attempt_does_not_overflow():
    assert retry_delay(Retry(), 10_000, 1.0) == 1800
    assert retry_delay(Retry(base_seconds=1e300, cap_seconds=60), 10_000, 1.0) == 60


def test_one_attempt_allowed_means_one():
    assert is_used_up(Retry(max_attempts=1), FRESH)
    assert not is_used_up(Retry(max_attempts=2), FRESH)


def test_every_failure_class_has_a_policy_and_nothing_else_has():
    assert set(POLICY) == set(FailureClass)


@pytest.mark.parametrize("failure_class", [FailureClass.THROTTLED, FailureClass.ACCOUNT, FailureClass.WINDOW])
def test_what_is_not_the_messages_fault_costs_it_no_attempt(failure_class):
    assert not POLICY[failure_class].charged


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_only_a_failed_connection_proves_that_the_provider_saw_nothing(outcome):
    word, failure_class, stage = describe(outcome)
    assert (stage is Stage.BEFORE_WIRE) is (failure_class is FailureClass.CONNECT)
    assert (failure_class is None) is (word == "accepted") is isinstance(outcome, Accepted)


def test_a_recipient_that_wants_minutes_waits_at_least_so_long_and_the_backoff_may_be_longer():
    """CLS-01."""
    greylisted = NotSent(FailureClass.TRANSIENT, "450", Stage.BEFORE_WIRE, 300.0)
    assert settle(greylisted) == Again(300.0, FailureClass.TRANSIENT)
    slow = POLICY_OF_THREE.model_copy(update={"base_seconds": 900.0})
    assert settle(greylisted, policy=slow) == Again(450.0, FailureClass.TRANSIENT)
    assert settle(greylisted, budget=LAST_BY_COUNT) == Stop(FailureClass.TRANSIENT, dead=True)


@pytest.mark.parametrize("tried", [True, False])
def test_a_used_key_is_an_acceptance_only_where_an_attempt_of_ours_explains_it(tried):
    refused_repeat = Accepted(None, replayed=True)
    assert isinstance(believed(refused_repeat, tried=tried), Accepted if tried else Ambiguous)
    for outcome in (Accepted("id", replayed=True), Accepted(None), Throttled("slow")):
        assert believed(outcome, tried=tried) is outcome
