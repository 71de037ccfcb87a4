"""Two, four and eight processes on one period: each message once, and no window with more than the gate allows."""

import pytest

from digest_pipeline_tests.harness.delivering import NEITHER, assert_once_each, frozen_desk, send_from

RATE, BURST, CUSTOMERS = 60, 20, 600
WINDOWS = (1, 2, 5, 10, 30, 60)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_workers_share_a_period_and_no_window_has_more_than_rate_and_burst(
    tmp_path, ledger_url, sandbox, nursery, workers
):
    """CON-01, CON-12, DUP-21, with a provider at which every repeat would be a second mail."""
    paced = {"per_second": RATE, "burst": BURST}
    with frozen_desk(tmp_path, ledger_url, sandbox, CUSTOMERS, NEITHER, rate=paced) as desk:
        done = send_from(nursery, tmp_path, ledger_url, workers)
        assert desk.counts() == {"sent": CUSTOMERS}
    assert sum(one["accepted"] for one in done) == CUSTOMERS
    assert [one["lost_claims"] for one in done] == [0] * workers
    assert_once_each(desk, range(1, CUSTOMERS + 1))
    oracle = sandbox.oracle()
    most = {window: oracle.max_arrivals(window) for window in WINDOWS}
    assert {window: count for window, count in most.items() if count > RATE * window + BURST} == {}
    assert oracle.max_arrivals(86_400) == CUSTOMERS  # nothing arrived that was not counted
