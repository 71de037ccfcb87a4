"""Somebody ran out of memory at the largest mailing of the year. Here memory does not grow with it."""

import pytest

from digest_pipeline_tests.cases import memories
from digest_pipeline_tests.harness.children import result_of, start_child
from digest_pipeline_tests.harness.delivering import NEITHER, frozen_desk
from digest_pipeline_tests.harness.ledgers import LABEL

FEW, MANY = 1_000, 10_000


@pytest.mark.slow
@pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)
def test_sending_ten_times_the_messages_takes_the_same_memory(tmp_path, sandbox, postgres_server, ledger_url):
    """MEM-02: no list of results is kept for the end."""
    peaks = []
    for customers in (FEW, MANY):
        folder = tmp_path / str(customers)
        folder.mkdir()
        with postgres_server.database() as url:
            fast = {"lanes": 4, "concurrency": 50, "run_limit_seconds": 300}
            with frozen_desk(folder, url, sandbox, customers, NEITHER, sending=fast):
                child = start_child(memories.__name__, "memory_of_sending", url, str(folder), LABEL)
                accepted, peak = result_of(child)
        assert accepted == customers
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 20_000_000
