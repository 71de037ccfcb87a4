import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.delivery import rate_gate
from digest_pipeline.delivery.rate_gate import PROBE_EVERY, SLACK
from digest_pipeline.ledger.gates import GateState

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND

RATES = st.one_of(st.floats(0.01, 100_000), st.sampled_from([0.5, 1.0, 3.0, 50.0, 3_000.0]))
BURSTS = st.integers(1, 5_000)
# Any number of takers is one sequence: the row is locked while one of them asks and pays.
TAKE = st.tuples(st.just("take"), st.integers(1, 60), st.integers(0, 60), st.integers(0, 2 * SECOND))
WAIT = st.tuples(st.just("wait"), st.integers(0, 3 * SECOND))
CLOSE = st.tuples(st.just("close"), st.floats(0, 5))
TROUBLE = st.sampled_from([("halt",), ("allow_probe",), ("reopen",)])
STEPS = st.lists(st.one_of(TAKE, TAKE, WAIT, CLOSE, TROUBLE), max_size=60)


class Run:
    """One gate's history: what started, and what the gate was told."""

    def __init__(self, rate, burst):
        self.gate = GateState("g", rate, burst, NOW)
        self.now = NOW
        self.starts = []
        self.halts = []

    def play(self, steps):
        for name, *values in steps:
            getattr(self, name)(*values)
        return self

    def take(self, wanted, used, horizon):
        granted = rate_gate.grant(self.gate, self.now, wanted, horizon)
        assert len(granted.starts) <= wanted
        assert list(granted.starts) == sorted(granted.starts)
        assert all(self.now <= start <= self.now + horizon for start in granted.starts)
        assert not granted.starts or self.now >= self.gate.closed_until
        if self.gate.halt_reason is not None:
            assert len(granted.starts) <= 1
        if not granted.starts:
            assert granted.again_at is not None
            assert granted.again_at > self.now
        paid = granted.starts[:used]
        self.gate = rate_gate.charge(self.gate, paid, self.now)
        self.starts += paid

    def wait(self, microseconds):
        self.now += microseconds

    def close(self, seconds):
        self.gate = rate_gate.close(self.gate, self.now, seconds)

    def halt(self):
        self.gate = rate_gate.halt(self.gate, self.now, "account: 401")

    def allow_probe(self):
        self.gate = rate_gate.allow_probe(self.gate, self.now)

    def reopen(self):
        self.gate = rate_gate.reopen(self.gate)


def assert_within(instants, rate, burst):
    """At most rate x w + burst in every window of w seconds, however long or short."""
    # Equal to the pairwise claim: the running surplus over the rate never exceeds the burst.
    lowest = math.inf
    for number, at in enumerate(instants):
        level = number - rate * (at - instants[0]) / SECOND
        lowest = min(lowest, level)
        assert level - lowest + 1 <= burst + 1e-6 * (1 + abs(level))


@given(RATES, BURSTS, STEPS)
def test_starts_in_any_window_stay_below_the_rate_and_the_burst(rate, burst, steps):
    assert_within(Run(rate, burst).play(steps).starts, rate, burst)


@given(RATES, BURSTS, STEPS)
def test_permits_come_in_order_whoever_takes_them(rate, burst, steps):
    starts = Run(rate, burst).play(steps).starts
    assert starts == sorted(starts)


@given(st.floats(0.01, 5_000), st.integers(0, 2_000), STEPS, st.randoms(use_true_random=False))
def test_arrivals_stay_below_it_too_when_every_permit_is_used_within_its_slack(rate, more, steps, random):
    burst = 1 + math.ceil(rate * SLACK / SECOND) + more
    starts = Run(rate, burst).play(steps).starts
    assert_within(sorted(start + random.randint(0, SLACK) for start in starts), rate, burst)


@given(RATES, BURSTS, STEPS, st.floats(0, 100))
def test_a_closed_gate_lets_nothing_through_and_reopens_without_a_burst(rate, burst, steps, seconds):
    run = Run(rate, burst).play(steps)
    run.reopen()
    run.close(seconds)
    run.starts.clear()
    run.take(60, 60, SECOND)
    run.now = run.gate.closed_until
    run.take(60, 60, SECOND)
    assert all(start >= run.gate.closed_until for start in run.starts)
    assert_within(run.starts, rate, 1)


@given(RATES, BURSTS, STEPS, st.lists(st.integers(0, PROBE_EVERY), max_size=20))
def test_while_halted_probes_lie_at_least_the_probe_interval_apart(rate, burst, steps, waits):
    run = Run(rate, burst).play(steps)
    run.starts.clear()
    run.halt()
    taken_at = []
    for wait in waits:
        run.wait(wait)
        before = len(run.starts)
        run.take(10, 10, SECOND)
        taken_at += [run.now] * (len(run.starts) - before)
    assert all(b - a >= PROBE_EVERY for a, b in pairwise(taken_at))


@given(
    st.one_of(st.sampled_from([math.nan, math.inf, -math.inf, 0.0]), st.floats(max_value=0)),
    st.integers(-5, 5_000),
    STEPS,
)
def test_a_stored_rate_that_is_none_never_lets_more_than_one_a_second_through(rate, burst, steps):
    assert_within(Run(rate, burst).play(steps).starts, 1.0, 1)


@given(RATES, BURSTS, STEPS)
def test_asking_again_at_the_named_moment_is_never_in_vain(rate, burst, steps):
    run = Run(rate, burst).play(steps)
    for _ in range(3):
        granted = rate_gate.grant(run.gate, run.now, 1, SECOND)
        if granted.starts or granted.again_at is None:
            return
        run.now = granted.again_at
    raise AssertionError("the gate put its taker off three times")
