"""Results that come back after their claim was lost, and leases that are still alive."""

from structlog.testing import capture_logs

from digest_pipeline.delivery import run
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline_tests.harness.delivering import NEITHER, REPLAYS, assert_once_each, key_of
from digest_pipeline_tests.harness.ledgers import migrated


def expire_leases(desk):
    desk.sql("UPDATE delivery SET lease_ends = 1 WHERE lease_ends IS NOT NULL")


def test_an_acceptance_that_comes_after_the_lease_is_recorded_and_applied(open_desk, ledger_url):
    desk = open_desk(1, can=NEITHER, sending={"timeout_seconds": 20})
    desk.script(Fault.HELD_AFTER_ACCEPT, 1)
    slow = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=1)
    expire_leases(desk)
    with migrated(ledger_url) as others:
        assert desk.as_process(others).deliver(run_id="run-2", sender="s2").expired == 1
    assert (desk.row(1).state, desk.row(1).hold_reason) == ("unknown", "no_evidence")
    desk.sandbox.control.release()
    assert slow.result().lost_claims == 1

    (accepted,) = desk.sandbox.oracle().acceptances()
    row = desk.row(1)
    assert (row.state, row.message_id, row.hold_reason) == ("sent", accepted.message_id, None)
    (attempt,) = desk.attempts(1)
    assert (attempt.outcome, attempt.late_outcome) == ("expired", "accepted")
    assert attempt.late_message_id == accepted.message_id


def test_a_late_result_that_proves_nothing_is_recorded_and_changes_nothing(open_desk, ledger_url):
    desk = open_desk(1, can=NEITHER, sending={"timeout_seconds": 2})
    desk.script(Fault.TIMEOUT_AFTER_ACCEPT, 1)
    slow = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=1)
    expire_leases(desk)
    with migrated(ledger_url) as others:
        desk.as_process(others).deliver(run_id="run-2", sender="s2")
    before = desk.row(1)
    assert slow.result().lost_claims == 1
    assert desk.row(1) == before
    (attempt,) = desk.attempts(1)
    assert (attempt.outcome, attempt.late_outcome) == ("expired", "ambiguous")


def test_a_live_lease_of_another_sender_is_never_taken_but_waited_for(open_desk, ledger_url, monkeypatch):
    """DUP-14."""
    monkeypatch.setattr(run, "OTHERS_LEASES", 0.1)
    desk = open_desk(2, can=REPLAYS, sending={"timeout_seconds": 20})
    desk.script(Fault.HELD_AFTER_ACCEPT, 1)
    slow = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=2)
    with migrated(ledger_url) as others:
        other = desk.as_process(others).deliver_meanwhile(run_id="run-2", sender="s2")
        desk.sandbox.control.release()
        assert other.result().accepted + slow.result().accepted == 2
    assert desk.sandbox.oracle().attempts(key_of(1)) == 1
    assert_once_each(desk, range(1, 3))


def test_an_acceptance_that_overtakes_a_newer_claim_is_applied_recorded_and_an_alert(open_desk, ledger_url):
    """The first sender's answer comes while a second one holds the row: its customer may have got two."""
    desk = open_desk(1, can=NEITHER, sending={"timeout_seconds": 20})
    desk.script(Fault.HELD_AFTER_ACCEPT, 1)
    slow = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=1)
    expire_leases(desk)
    with migrated(ledger_url) as others:
        second = desk.as_process(others)
        second.deliver(run_id="run-2", sender="s2")
        # A person is sure, and wrong: what the runbook warns of.
        desk.sql(
            "UPDATE delivery SET state = 'claimed', token = token + 1000, lease_ends = claimed_at + 99000000000, "
            "claimed_by = 'run-3/s3', hold_reason = NULL, ambiguous_at = NULL, ambiguous_token = NULL"
        )
        newer = desk.row(1).token
        with capture_logs() as logs:
            desk.sandbox.control.release()
            assert slow.result().lost_claims == 1
    assert (desk.row(1).state, desk.row(1).token) == ("sent", newer)
    first, last = desk.attempts(1)
    assert (first.outcome, first.late_outcome) == ("expired", "accepted")
    assert (last.token, last.outcome, last.claimed_by, last.charged) == (
        newer, "superseded", "run-3/s3", False,
    )  # fmt: skip
    assert {"event": "late_acceptance", "key": key_of(1), "log_level": "error"} in logs
