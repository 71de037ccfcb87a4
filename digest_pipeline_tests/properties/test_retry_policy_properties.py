import math

from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.delivery.retry_policy import (
    Again,
    Budget,
    Evidence,
    Release,
    Sent,
    Stop,
    Unknown,
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
    Refused,
    Throttled,
)
from digest_pipeline.spec import Retry
from digest_pipeline.states import HoldReason

SECONDS = st.floats(0.001, 1e6)
POLICIES = st.builds(
    Retry,
    base_seconds=SECONDS,
    cap_seconds=SECONDS,
    max_attempts=st.integers(1, 100),
    max_age_hours=st.floats(0.001, 1e4),
)
UNIT = st.floats(0, 1)
BUDGETS = st.builds(Budget, st.integers(0, 10_000), st.floats(0, 1e9))
EVIDENCE = st.one_of(st.builds(Evidence, st.floats(0, 1e6)), st.just(Evidence(None, HoldReason.NO_EVIDENCE)))
OUTCOMES = st.one_of(
    st.builds(Accepted, st.none() | st.text(), st.booleans()),
    st.builds(Refused, st.sampled_from([FailureClass.RECIPIENT, FailureClass.CONTENT]), st.text()),
    st.builds(NotSent, st.sampled_from([FailureClass.CONNECT, FailureClass.TRANSIENT]), st.text()),
    st.builds(Throttled, st.text(), st.none() | st.floats(0, 86_400)),
    st.builds(Ambiguous, st.text(), st.booleans()),
    st.builds(AccountRefused, st.text()),
)


@given(POLICIES, st.integers(1, 10_000), UNIT)
def test_a_delay_is_finite_and_between_half_and_whole_of_the_capped_backoff(policy, attempt, random):
    whole = min(policy.cap_seconds, policy.base_seconds * 2.0 ** min(attempt - 1, 1_000))
    delay = retry_delay(policy, attempt, random)
    assert math.isfinite(delay)
    assert 0.5 * whole <= delay <= whole <= policy.cap_seconds


@given(POLICIES, st.integers(1, 200), UNIT)
def test_a_later_attempt_never_waits_less(policy, attempt, random):
    assert retry_delay(policy, attempt + 1, random) >= retry_delay(policy, attempt, random)


@given(OUTCOMES, st.booleans(), BUDGETS, POLICIES, EVIDENCE, UNIT)
def test_a_settlement_keeps_the_promises_of_ambiguity(outcome, ambiguous, budget, policy, evidence, random):
    found = settlement(
        outcome, ambiguous=ambiguous, budget=budget, policy=policy, evidence=evidence, random=random
    )
    suspect = ambiguous or isinstance(outcome, Ambiguous)
    assert isinstance(found, Sent) is isinstance(outcome, Accepted)
    assert isinstance(found, Unknown) is (suspect and not isinstance(outcome, Accepted))
    if isinstance(found, Unknown):
        assert (found.delay is None) is (found.hold is not None)
    if isinstance(found, Unknown | Again | Release) and found.delay is not None:
        assert math.isfinite(found.delay)
        assert found.delay >= 0


@given(POLICIES, UNIT, st.floats(0, 1e6))
def test_a_row_that_is_never_taken_dies_within_its_budget_and_never_before(policy, random, spacing):
    outcome = NotSent(FailureClass.TRANSIENT, "503")
    attempts, age = 0, 0.0
    while True:
        budget = Budget(attempts, age)
        found = settlement(
            outcome, ambiguous=False, budget=budget, policy=policy, evidence=Evidence(0.0), random=random
        )
        attempts += 1
        if isinstance(found, Stop):
            break
        assert isinstance(found, Again)
        assert attempts < policy.max_attempts
        assert age < policy.max_age_hours * 3600
        age += max(spacing, found.delay)
    assert found.dead
    assert is_used_up(policy, budget)
    assert attempts == policy.max_attempts or age >= policy.max_age_hours * 3600
