import math
from dataclasses import replace

import pytest

from digest_pipeline.delivery import rate_gate
from digest_pipeline.delivery.rate_gate import PROBE_EVERY, SLACK, Grant, charge, close, grant, halt
from digest_pipeline.ledger.gates import GateState

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
HORIZON = 400_000


def gate(per_second=10.0, burst=1, **changes):
    return replace(GateState("sandbox:a1", per_second, burst, NOW), **changes)


def drain(state, now, wanted=1_000, horizon=HORIZON):
    """Take and use everything the gate grants now; return the starts and the gate after it."""
    granted = grant(state, now, wanted, horizon)
    return granted.starts, charge(state, granted.starts, now)


def test_permits_are_spaced_by_the_rate_and_end_at_the_horizon():
    starts, state = drain(gate(), NOW)
    assert starts == tuple(NOW + n * SECOND // 10 for n in range(5))
    assert grant(state, NOW, 1, HORIZON) == Grant(again_at=NOW + SECOND // 10)


def test_the_gate_grants_at_the_moment_it_named():
    starts, state = drain(gate(), NOW)
    again = grant(state, NOW, 3, HORIZON).again_at
    assert again is not None
    assert grant(state, again, 3, HORIZON).starts == (starts[-1] + SECOND // 10,)


def test_a_rested_gate_lets_its_burst_through_at_once_less_what_the_slack_could_add():
    state = gate(per_second=40, burst=30)
    starts, _ = drain(state, NOW, horizon=0)
    assert len(starts) == 30 - math.ceil(40 * SLACK / SECOND)
    assert set(starts) == {NOW}


def test_resting_longer_saves_up_no_more_than_the_burst():
    state = gate(per_second=40, burst=30)
    assert len(drain(state, NOW + 3600 * SECOND, horizon=0)[0]) == len(drain(state, NOW, horizon=0)[0])


def test_permits_that_were_not_used_are_granted_again():
    state = gate()
    first = grant(state, NOW, 5, HORIZON)
    after = charge(state, first.starts[:2], NOW)
    assert grant(after, NOW, 1, HORIZON).starts == first.starts[2:3]
    assert charge(state, (), NOW) is state


def test_two_takers_get_different_permits():
    state = gate()
    mine = grant(state, NOW, 2, HORIZON).starts
    theirs = grant(charge(state, mine, NOW), NOW, 2, HORIZON).starts
    assert mine[-1] < theirs[0]


def test_a_closed_gate_says_when_it_opens_and_opens_without_a_burst():
    state = close(gate(per_second=40, burst=30), NOW, 90)
    assert grant(state, NOW, 5, HORIZON) == Grant(again_at=NOW + 90 * SECOND)
    assert drain(state, NOW + 90 * SECOND, horizon=0)[0] == (NOW + 90 * SECOND,)


def test_closing_for_less_never_opens_it_earlier():
    state = close(close(gate(), NOW, 90), NOW, 1)
    assert state.closed_until == NOW + 90 * SECOND


def test_a_halted_gate_lets_one_probe_through_and_the_next_one_later():
    state = halt(gate(), NOW, "account: 401")
    assert grant(state, NOW, 5, HORIZON) == Grant(again_at=NOW + PROBE_EVERY, halted=True)
    at = NOW + PROBE_EVERY
    probe = grant(state, at, 5, HORIZON)
    assert probe == Grant((at,), probe=True)
    state = charge(state, probe.starts, at)
    assert grant(state, at, 5, HORIZON) == Grant(again_at=at + PROBE_EVERY, halted=True)


def test_a_run_that_a_person_starts_may_probe_at_once_and_only_once():
    state = rate_gate.allow_probe(halt(gate(), NOW, "account: 401"), NOW + 1)
    starts, state = drain(state, NOW + 1)
    assert starts == (NOW + 1,)
    assert drain(state, NOW + 2)[0] == ()


def test_a_probe_that_nothing_used_stays_due():
    state = rate_gate.allow_probe(halt(gate(), NOW, "account: 401"), NOW)
    assert charge(state, (), NOW) is state


def test_an_acceptance_ends_a_halt_and_the_probe_was_charged():
    state = rate_gate.allow_probe(halt(gate(), NOW, "account: 401"), NOW)
    _, state = drain(state, NOW)
    state = rate_gate.reopen(state)
    assert state.halt_reason is None
    assert drain(state, NOW, horizon=0)[0] == ()


def test_a_halted_gate_that_is_also_closed_sends_no_probe_before_it_opens():
    state = rate_gate.allow_probe(close(halt(gate(), NOW, "account: quota"), NOW, 90), NOW)
    assert grant(state, NOW, 1, HORIZON) == Grant(again_at=NOW + 90 * SECOND, halted=True)
    assert grant(state, NOW + 90 * SECOND, 1, HORIZON).probe


def test_allowing_a_probe_changes_nothing_on_a_gate_that_is_not_halted():
    state = gate()
    assert rate_gate.allow_probe(state, NOW) is state


@pytest.mark.parametrize("per_second", [math.nan, math.inf, -math.inf, -5.0, 0.0])
@pytest.mark.parametrize("burst", [100, 0, -3])
def test_a_rate_that_cannot_be_one_fails_closed_to_one_a_second(per_second, burst):
    state = gate(per_second=per_second, burst=burst)
    starts, state = drain(state, NOW, horizon=10 * SECOND)
    assert starts == tuple(NOW + n * SECOND for n in range(11))
    assert drain(close(state, NOW, 1), NOW + SECOND, horizon=0)[0] == ()


@pytest.mark.parametrize("burst", [0, -3])
def test_a_burst_that_cannot_be_one_fails_closed_too(burst):
    starts, _ = drain(gate(per_second=1000, burst=burst), NOW, horizon=SECOND)
    assert starts == (NOW, NOW + SECOND)


@pytest.mark.parametrize("per_second", [0.001, 0.3, 3, 7, 3_000, 70_000, 100_000])
def test_rounding_the_interval_never_raises_the_rate(per_second):
    starts, _ = drain(gate(per_second=per_second), NOW, wanted=50, horizon=2**62)
    assert (len(starts) - 1) * SECOND <= per_second * (starts[-1] - starts[0]) * (1 + 1e-9)
