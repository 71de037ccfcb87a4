"""A call with several messages keeps the gate's promise: they arrive together, and never too many."""

from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.delivery import rate_gate
from digest_pipeline_tests.properties.test_rate_gate_properties import BURSTS, NOW, SECOND, Run, assert_within

RATES = st.one_of(st.floats(0.5, 5_000), st.sampled_from([1.0, 50.0, 3_000.0]))
CALLS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 2 * SECOND)), max_size=40)


class Batched(Run):
    def take_calls(self, wanted, size, pause):
        granted = rate_gate.grant(self.gate, self.now, wanted, SECOND).starts
        size = min(size, rate_gate.most_at_once(self.gate))
        sizes = [len(granted[first : first + size]) for first in range(0, len(granted), size)]
        moved = rate_gate.together(granted, sizes)
        assert all(start >= before for start, before in zip(moved, granted, strict=True))
        assert sorted(set(moved)) == sorted(dict.fromkeys(moved))
        self.gate = rate_gate.charge(self.gate, granted, self.now)
        self.starts += moved
        self.wait(pause)


@given(RATES, BURSTS, CALLS)
def test_calls_that_start_together_stay_within_rate_and_burst(rate, burst, calls):
    run = Batched(rate, burst)
    for one in calls:
        run.take_calls(*one)
    most = rate_gate.most_at_once(run.gate)
    assert 1 <= most <= burst
    assert run.starts == [] or min(run.starts) >= NOW
    assert_within(run.starts, rate, burst)
