"""The ledger goes away during a run: nothing is sent twice and nothing is lost."""

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy.exc import ProgrammingError

from digest_pipeline_tests.harness.delivering import REPLAYS, Desk, assert_once_each, frozen_desk
from digest_pipeline_tests.harness.ledgers import migrated
from digest_pipeline_tests.harness.lossy_proxy import LossyProxy

pytestmark = pytest.mark.postgresql

CUSTOMERS = 80
SLOWLY = {"rate": {"per_second": 100, "burst": 40}, "sending": {"run_limit_seconds": 6}}


@pytest.fixture
def desk(tmp_path, postgres_url, sandbox) -> Iterator[Desk]:
    sandbox.change(latency_ms=20)
    with frozen_desk(tmp_path, postgres_url, sandbox, CUSTOMERS, REPLAYS, **SLOWLY) as desk:
        yield desk


def finish(desk):
    """Start runs until nothing is left, while the leases of what was lost run out."""
    for run in range(2, 5):
        desk.pass_time(61)
        desk.deliver(run_id=f"run-{run}")
        if desk.counts() == {"sent": CUSTOMERS}:
            break
    assert desk.counts() == {"sent": CUSTOMERS}
    assert_once_each(desk, range(1, CUSTOMERS + 1))


def test_every_connection_is_ended_again_and_again_and_everybody_gets_it_once(desk, postgres_url):
    with migrated(postgres_url) as broken:
        run = desk.as_process(broken).deliver_meanwhile()
        killed = 0
        for accepted in (10, 25, 40, 55):
            desk.sandbox.control.wait(accepted=accepted)
            killed += len(
                desk.sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'digest_pipeline' "
                    "AND pid <> pg_backend_pid()"
                )
            )
        assert killed >= 4
        run.result()
    finish(desk)


def test_commits_whose_answer_is_lost_are_neither_repeated_nor_forgotten(desk, postgres_url, tmp_path):
    with LossyProxy(tmp_path, postgres_url) as proxy, migrated(proxy.url) as lossy:
        run = desk.as_process(lossy).deliver_meanwhile()
        for accepted in (3, 10, 18, 25):  # a claim that is lost holds its rows until its lease ends
            desk.sandbox.control.wait(accepted=accepted)
            proxy.lose_next_commits(1)
        run.result()
        assert proxy.lost == 4
    tokens = Counter(attempt.token for attempt in desk.attempts())
    assert set(tokens.values()) == {1}
    # A claim whose commit was lost unseen was never sent, and is known to be so.
    assert [a.outcome for a in desk.attempts() if a.outcome in ("expired", "ambiguous")] == []
    assert [a.token for a in desk.attempts() if a.late_outcome is not None] == []
    finish(desk)


def test_a_settlement_whose_commit_was_lost_is_not_taken_for_a_late_result(desk, postgres_url, tmp_path):
    with LossyProxy(tmp_path, postgres_url) as proxy, migrated(proxy.url) as lossy:
        run = desk.as_process(lossy).deliver_meanwhile()
        desk.sandbox.control.wait(accepted=30)
        proxy.lose_next_commits(1)
        assert run.result().lost_claims == 0
    accepted = [a for a in desk.attempts() if a.outcome == "accepted"]
    assert len({a.message_id for a in accepted}) == len(accepted)
    finish(desk)


def test_a_ledger_that_refuses_ends_the_run_with_its_own_error_and_the_next_run_goes_on(desk, postgres_url):
    """CON-12."""
    with migrated(postgres_url) as broken:
        run = desk.as_process(broken).deliver_meanwhile()
        desk.sandbox.control.wait(accepted=10)
        desk.sql("ALTER TABLE rate_gate RENAME TO elsewhere")
        with pytest.raises(ProgrammingError):
            run.result()
    desk.sql("ALTER TABLE elsewhere RENAME TO rate_gate")
    finish(desk)
