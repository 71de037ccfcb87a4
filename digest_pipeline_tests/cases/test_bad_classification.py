"""Somebody took one failure for another. Here each one does what its class says, and nothing else."""

from itertools import permutations

import pytest

from digest_pipeline.addresses import address_hash
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.ledger import reads, transitions
from digest_pipeline.ledger.claims import Claimer, claim_due
from digest_pipeline.outcomes import Proof
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline_tests.cases.stage import provider_that_says, sends, wait_until
from digest_pipeline_tests.harness.delivering import LOOK_UP, NEITHER, assert_once_each, key_of
from digest_pipeline_tests.harness.ledgers import dump, migrated
from digest_pipeline_tests.harness.raw_http import PAGE, answer, named

ONE_PASS = {"sending": {"in_run_wait_seconds": 0}, "retry": {"base_seconds": 30, "cap_seconds": 1_800}}


def test_a_provider_that_says_not_now_is_asked_later_and_nobody_is_suppressed(open_desk):
    """CLS-01, for HTTP: the second request comes after the backoff, and is taken."""
    desk = open_desk(3, **ONE_PASS)
    desk.script(Fault.UNAVAILABLE_503, 2)
    desk.deliver()
    desk.deliver(run_id="run-2")
    assert (desk.row(2).state, desk.row(2).failure_class) == ("retry", "transient")
    assert len(sends(desk, 2)) == 1
    desk.pass_time(31)
    desk.deliver(run_id="run-3")
    assert dump(desk.ledger, "suppression") == []
    assert_once_each(desk, range(1, 4))


@pytest.mark.parametrize(
    ("said", "failure_class"),
    [
        (answer(422, named("invalid_recipient")), "recipient"),
        (answer(400, named("invalid_recipient")), "recipient"),
        (answer(422, named("validation_error")), "content"),
        (answer(400, named("validation_error")), "content"),
        (answer(413, PAGE), "content"),
    ],
)
def test_a_permanent_refusal_is_never_asked_about_again(open_desk, said, failure_class):
    """CLS-03, DUP-05: three runs, one request."""
    desk = open_desk(1, can=NEITHER)
    with provider_that_says(said) as server:
        for run in range(3):
            desk.deliver(desk.gateway(url=server.url), run_id=f"run-{run}")
            desk.pass_time(3_600)
    assert len(server.requests) == 1
    assert (desk.row(1).state, desk.row(1).failure_class) == ("failed", failure_class)


def test_an_answer_that_nobody_documented_is_unknown_and_not_retried(open_desk):
    """CLS-03: 999 and the like say nothing about what happened."""
    desk = open_desk(1, can=NEITHER)
    with provider_that_says(answer(999, b"nonsense")) as server:
        for run in range(3):
            desk.deliver(desk.gateway(url=server.url), run_id=f"run-{run}")
            desk.pass_time(3_600)
    assert len(server.requests) == 1
    assert (desk.row(1).state, desk.row(1).hold_reason) == ("unknown", "no_evidence")


def test_a_suppression_counts_until_it_expires_or_somebody_lifts_it(open_desk):
    """CLS-13: never for ever by mistake. Nothing is suppressed by a single transient failure."""
    desk = open_desk(4)
    with desk.ledger.read() as conn:
        now = reads.now(conn)
    insert = (
        "INSERT INTO suppression (tenant, address_hash, reason, since_at, expires_at) "
        "VALUES ('default', :h, 'bounced', 1, :e)"
    )
    desk.sql(insert, h=address_hash("reader-1@example.test"), e=now - 1)
    desk.sql(insert, h=address_hash("reader-2@example.test"), e=now + 3_600_000_000)
    desk.sql(insert, h=address_hash("reader-3@example.test"), e=None)
    desk.sql("DELETE FROM suppression WHERE address_hash = :h", h=address_hash("reader-3@example.test"))
    desk.deliver()
    assert [row.state for row in desk.rows()] == ["sent", "suppressed", "sent", "sent"]


def test_proofs_in_any_order_come_to_the_same(open_desk):
    """CLS-14: complained over bounced over delivered over accepted, whichever comes last."""
    assert sorted(Proof, key=lambda one: one.rank) == ["accepted", "delivered", "bounced", "complained"]
    for arrived in permutations(Proof):
        assert max(arrived, key=lambda one: one.rank) is Proof.COMPLAINED
    desk = open_desk(2)
    desk.deliver()
    for known in Proof:
        desk.sql("UPDATE delivery SET proof = :p", p=str(known))
        for late in (one for one in Proof if one.rank <= known.rank):
            rows = [late_word(row, late) for row in desk.rows()]
            with desk.ledger.write() as conn:
                transitions.apply_acceptance(conn, rows)
            assert {row.proof for row in desk.rows()} == {str(known)}


def late_word(row, proof):
    return {
        "manifest_id": row.manifest_id,
        "ordinal": row.ordinal,
        "token": row.token,
        "message_id": "late",
        "proof": proof,
    }


def test_evidence_that_overtakes_our_own_answer_settles_it_and_the_answer_changes_nothing(
    open_desk, ledger_url
):
    """CLS-15: the provider knows of it before we have stored "sent"; then our own answer comes."""
    desk = open_desk(2, can=LOOK_UP, sending={"timeout_seconds": 20})
    desk.script(Fault.HELD_AFTER_ACCEPT, 1)
    slow = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=2)
    wait_until(lambda: desk.row(2).state == "sent")
    desk.sql("UPDATE delivery SET lease_ends = 1 WHERE lease_ends IS NOT NULL")
    with migrated(ledger_url) as others:
        other = desk.as_process(others)
        assert other.deliver(run_id="run-2").expired == 1
        assert desk.row(1).state == "unknown"
        desk.sql("UPDATE delivery SET due_at = 1 WHERE due_at IS NOT NULL")
        assert other.deliver(run_id="run-3").findings == {Finding.SENT: 1}
    settled = desk.row(1)
    assert settled.state == "sent"
    desk.sandbox.control.release()
    assert slow.result().lost_claims == 1
    (accepted,) = desk.sandbox.oracle().acceptances(key_of(1))
    assert (desk.row(1).state, desk.row(1).message_id) == ("sent", accepted.message_id)
    with desk.ledger.read() as conn:
        assert reads.duplicate_sends(conn, desk.manifest_ids) == []
    assert_once_each(desk, range(1, 3))


def test_an_acceptance_that_only_evidence_knows_of_settles_what_a_dead_process_left(open_desk):
    """CLS-15, the variant: the process dies before the answer comes."""
    desk = open_desk(2, can=LOOK_UP)
    desk.deliver(run_id="run-0")
    account = desk.gateway().account
    desk.sql("UPDATE delivery SET state = 'pending', due_at = 1, finished_at = NULL, proof = NULL")
    who = Claimer("run-1/s1", "sandbox", account, 1)
    assert len(desk.ledger.transact(lambda conn: claim_due(conn, desk.manifest_ids[0], 2, who)).claimed) == 2
    desk.pass_time(60)
    found = desk.deliver(run_id="run-2")
    desk.pass_time(60)
    assert (found.expired, desk.deliver(run_id="run-3").findings) == (2, {Finding.SENT: 2})
    assert_once_each(desk, range(1, 3))
