"""What a subscriber decides about a push, on real ledgers and a real provider."""

import pytest
from sqlalchemy import select

from digest_pipeline.addresses import address_hash
from digest_pipeline.gateways import registry
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.ledger import pauses, provider_events, reads, receipts
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.ledger.receipts import ReceiptState
from digest_pipeline.ledger.schema import push_receipt
from digest_pipeline.outcomes import FailureClass, Proof
from digest_pipeline.spec_suppression import DEFAULT_SUPPRESSION
from digest_pipeline.subscriber import replies
from digest_pipeline.subscriber.content import ContentUnavailableError
from digest_pipeline_tests.harness.delivering import LOOK_UP, NEITHER, REPLAYS, key_of
from digest_pipeline_tests.subscriber.pushing import Taker, push_of

OTHER_HASH = "0" * 64


def taker_of(open_desk, customers=2, **changes):
    return Taker(open_desk(customers, **changes))


def count_receipts(taker):
    with taker.desk.ledger.read() as conn:
        return len(conn.execute(select(push_receipt)).all())


def test_a_push_is_sent_once_and_every_repeat_gets_the_same_answer(open_desk):
    """SEC-07: a replay inside the tolerance is a no-op."""
    taker = taker_of(open_desk)
    first = taker.take(1)
    again = [taker.take(1) for _ in range(3)]
    assert (first.status, first.outcome, first.replayed) == (200, "complete", False)
    assert {(one.message_id, one.replayed) for one in again} == {(first.message_id, True)}
    assert (taker.arrivals(1), taker.receipt(1).attempts) == (1, 1)


def test_overlapping_pushes_of_one_key_call_the_sender_once(open_desk):
    taker = taker_of(open_desk)
    answers = taker.take_all(*[push_of(taker.desk, 1)] * 8)
    assert {one.outcome for one in answers} <= {"complete", "busy"}
    assert "complete" in {one.outcome for one in answers}
    assert taker.arrivals(1) == 1
    assert taker.take(1).outcome == "complete"


def test_a_denial_of_the_rate_gate_is_no_attempt(open_desk):
    taker = taker_of(open_desk, rate={"per_second": 0.1, "burst": 2})
    assert taker.take(1).outcome == "complete"
    denied = taker.take(2)
    assert (denied.status, denied.outcome) == (429, "throttled")
    assert 1 <= int(denied.response().headers["Retry-After"]) <= 11
    assert (taker.receipt(2).state, taker.receipt(2).attempts, taker.arrivals(2)) == (
        ReceiptState.RECEIVED,
        0,
        0,
    )
    taker.pass_time(11)
    assert taker.take(2).outcome == "complete"


def test_a_throttling_provider_closes_the_gate_for_every_key_and_charges_none(open_desk):
    taker = taker_of(open_desk)
    taker.desk.script(Fault.THROTTLED_429, 1, retry_after=30)
    throttled, next_one = taker.take(1), taker.take(2)
    assert [one.status for one in (throttled, next_one)] == [429, 429]
    assert (taker.receipt(1).attempts, taker.arrivals(2)) == (0, 0)
    taker.pass_time(31)
    assert [taker.take(number).outcome for number in (1, 2)] == ["complete", "complete"]


def test_a_retryable_end_then_a_send_then_a_duplicate_is_already_complete(open_desk):
    taker = taker_of(open_desk)
    taker.desk.script(Fault.UNAVAILABLE_503, 1)
    assert [taker.take(1).outcome for _ in range(3)] == ["retry", "complete", "complete"]
    assert (taker.receipt(1).attempts, taker.accepted(1)) == (2, 1)


def test_a_rejection_is_final_and_answered_alike_for_ever(open_desk):
    taker = taker_of(open_desk)
    taker.desk.script(Fault.INVALID_RECIPIENT_422, 1)
    first, second = taker.take(1), taker.take(1)
    assert first == second == replies.rejected(FailureClass.RECIPIENT, suppressed=False)
    assert taker.arrivals(1) == 1


def test_a_refused_account_halts_everything_until_a_push_tries_it_again(open_desk):
    taker = taker_of(open_desk)
    taker.desk.script(Fault.UNAUTHORIZED_401, 1)
    assert [taker.take(1), taker.take(2)] == [replies.HALTED, replies.HALTED]
    assert (taker.receipt(1).attempts, taker.arrivals(2)) == (0, 0)
    taker.pass_time(3)
    assert taker.take(2).outcome == "complete"
    assert taker.desk.sql("SELECT halt_reason FROM rate_gate")[0].halt_reason is None


@pytest.mark.parametrize("after", ["nothing", "complete", "rejected", "unknown"])
def test_other_bytes_under_a_known_key_are_an_alarm_and_never_sent(open_desk, after):
    """CLS-11."""
    taker = taker_of(open_desk, can=REPLAYS)
    faults = {"rejected": Fault.INVALID_RECIPIENT_422, "unknown": Fault.RESET_BEFORE_ACCEPT}
    if after in faults:
        taker.desk.script(faults[after], 1)
    if after != "nothing":
        assert taker.take(1).outcome == after
    before = (taker.arrivals(1), taker.accepted(1))
    assert taker.take(1, payload_hash=OTHER_HASH) == replies.INTEGRITY
    assert (taker.arrivals(1), taker.accepted(1)) == before
    if after == "nothing":
        assert count_receipts(taker) == 0


def test_a_push_and_content_of_different_digests_are_an_alarm(open_desk):
    taker = taker_of(open_desk)
    assert taker.take(1, digest="another_digest") == replies.INTEGRITY
    assert taker.take(1, tenant="acme") == replies.INTEGRITY
    assert taker.arrivals(1) == 0


def test_a_key_that_names_no_digest_is_sent_by_what_its_content_says(open_desk):
    taker = taker_of(open_desk)
    assert taker.take(1, digest=None, tenant=None).outcome == "complete"


@pytest.mark.parametrize(
    "fault", [Fault.RESET_AFTER_ACCEPT, Fault.RESET_BEFORE_ACCEPT, Fault.HTML_200_AFTER_ACCEPT]
)
def test_what_may_have_been_sent_goes_again_under_the_same_key_where_the_provider_repeats(open_desk, fault):
    taker = taker_of(open_desk, can=REPLAYS)
    taker.desk.script(fault, 1)
    assert taker.take(1).outcome == "unknown"
    assert taker.receipt(1).ambiguous_at is not None
    assert taker.take(1).outcome == "complete"
    assert (taker.arrivals(1), taker.accepted(1)) == (2, 1)


def test_beyond_the_keys_lifetime_nothing_is_sent_again(open_desk):
    """DUP-34."""
    taker = taker_of(open_desk, can={**REPLAYS, "key_lifetime": "2h"})
    taker.desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    assert taker.take(1).outcome == "unknown"
    taker.pass_time(2 * 3600)
    assert [taker.take(1).status for _ in range(2)] == [409, 409]
    assert taker.arrivals(1) == 1


def test_what_is_found_by_its_key_was_sent(open_desk):
    taker = taker_of(open_desk, can=LOOK_UP)
    taker.desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    assert taker.take(1).outcome == "unknown"
    assert taker.take(1).status == 409  # too early to ask
    taker.pass_time(10)
    found = taker.take(1)
    assert (found.outcome, found.replayed) == ("complete", True)
    assert taker.arrivals(1) == 1


def test_absent_counts_only_twice_apart_and_while_a_key_that_was_sent_is_found(open_desk):
    taker = taker_of(open_desk, can=LOOK_UP)
    taker.desk.script(Fault.RESET_BEFORE_ACCEPT, 1)
    assert taker.take(1).outcome == "unknown"
    taker.pass_time(10)
    assert taker.take(1).outcome == "unknown"
    assert taker.receipt(1).absent_at is None  # no key was surely sent: the look-up may be broken
    assert taker.take(2).outcome == "complete"
    taker.pass_time(40)
    assert taker.take(1).outcome == "unknown"
    assert taker.receipt(1).absent_at is not None
    taker.pass_time(10)
    assert taker.take(1).outcome == "unknown"
    assert (taker.receipt(1).state, taker.receipt(1).ambiguous_at) == (ReceiptState.RECEIVED, None)
    assert taker.take(1).outcome == "complete"
    assert taker.accepted(1) == 1


def test_without_keys_and_look_ups_only_an_event_settles_it(open_desk):
    taker = taker_of(open_desk, can=NEITHER)
    taker.desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    assert taker.take(1).outcome == "unknown"
    taker.pass_time(7 * 86400)
    assert [taker.take(1).outcome for _ in range(3)] == ["unknown"] * 3
    event = Event("sandbox", "e-1", EventKind.DELIVERED, key_of(1), "m-77")
    taker.desk.ledger.transact(
        lambda conn: provider_events.take_in(conn, event, lambda _: DEFAULT_SUPPRESSION)
    )
    settled = taker.take(1)
    assert (settled.outcome, settled.message_id) == ("complete", "m-77")
    assert taker.arrivals(1) == 1


def plant_dead_claim(taker, gateway):
    """Leave what a subscriber leaves that was killed a minute ago, before or after its request."""
    taker.desk.sql(
        "INSERT INTO push_receipt (operation_key, payload_hash, state, token, claimed_at, lease_ends, attempts,"
        " gateway, account, received_at) VALUES (:k, :h, 'sending', 5, :c, :e, 1, :g, :a, 1)",
        k=key_of(1), h=push_of(taker.desk, 1).payload_hash, c=now_of(taker) - 120_000_000,
        e=now_of(taker) - 60_000_000, g=gateway.name, a=gateway.account,
    )  # fmt: skip


def now_of(taker):
    with taker.desk.ledger.read() as conn:
        return reads.now(conn)


@pytest.mark.parametrize(
    ("can", "sent_again"), [(REPLAYS, 1), (LOOK_UP, 0), (NEITHER, 0)], ids=["replays", "look_up", "neither"]
)
def test_a_claim_whose_lease_is_over_is_in_doubt_and_never_simply_sent(open_desk, can, sent_again):
    taker = taker_of(open_desk, can=can)
    plant_dead_claim(taker, taker.desk.gateway())
    answer = taker.take(1)
    assert answer.outcome == ("complete" if sent_again else "unknown")
    assert taker.arrivals(1) == sent_again
    assert taker.receipt(1).state is (ReceiptState.COMPLETE if sent_again else ReceiptState.UNKNOWN)


def test_what_is_in_doubt_at_another_account_is_left_alone(open_desk):
    taker = taker_of(open_desk, can=REPLAYS)
    other = registry.create("sandbox", {"url": taker.desk.sandbox.url, "api_key": "another-account"})
    plant_dead_claim(taker, other)
    assert [taker.take(1).outcome for _ in range(2)] == ["unknown", "unknown"]
    assert taker.arrivals(1) == 0


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_suppressed_address_is_left_alone(open_desk, in_doubt):
    taker = taker_of(open_desk, can=REPLAYS)
    if in_doubt:
        taker.desk.script(Fault.RESET_BEFORE_ACCEPT, 1)
        assert taker.take(1).outcome == "unknown"
    taker.desk.sql(
        "INSERT INTO suppression (tenant, address_hash, reason, since_at) VALUES ('default', :h, 'opted_out', 1)",
        h=address_hash("reader-1@example.test"),
    )
    answer = taker.take(1)
    if in_doubt:
        assert answer.outcome == "unknown"
    else:
        assert answer == replies.rejected(FailureClass.RECIPIENT, suppressed=True)
    assert taker.arrivals(1) == int(in_doubt)


class Unavailable:
    async def fetch(self, operation_key):
        raise ContentUnavailableError("no content: TimeoutError")

    async def close(self):
        """Nothing is open."""


def test_without_content_nothing_is_claimed_and_the_push_comes_again(open_desk):
    taker = taker_of(open_desk)
    taker.contents = Unavailable()
    assert taker.take(1) == replies.retry()
    assert count_receipts(taker) == 0
    taker.contents = None
    assert taker.take(1).outcome == "complete"


def test_an_unknown_without_content_stays_unknown(open_desk):
    taker = taker_of(open_desk, can=REPLAYS)
    taker.desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    assert taker.take(1).outcome == "unknown"
    taker.contents = Unavailable()
    assert taker.take(1).outcome == "unknown"


def test_a_key_that_nobody_sealed_is_not_sent_and_one_that_was_erased_is_rejected(open_desk):
    taker = taker_of(open_desk)
    assert taker.take(1, key="tiny_digest:2025-W10:nobody", digest=None) == replies.retry()
    taker.desk.sql("UPDATE manifest_entry SET recipient = NULL WHERE ordinal = 1")
    assert [taker.take(1).outcome for _ in range(2)] == ["rejected", "rejected"]
    assert taker.receipt(1).failure_class is FailureClass.CONTENT
    assert taker.arrivals(1) == 0


def test_content_is_checked_against_the_hash_that_was_pushed(open_desk):
    taker = taker_of(open_desk)
    other = taker.desk.sql("SELECT document FROM content WHERE ordinal = 2")[0].document
    taker.desk.sql("UPDATE content SET document = :d WHERE ordinal = 1", d=other)
    assert taker.take(1) == replies.INTEGRITY
    assert taker.arrivals(1) == 0


def test_nothing_goes_out_while_sending_is_off_or_paused_or_the_ledger_is_anothers(open_desk):
    """DUP-26."""
    taker = taker_of(open_desk)
    taker.environment = "staging"
    assert taker.take(1) == replies.HALTED
    taker.environment = "test"
    taker.desk.change(enabled=False)
    assert taker.take(1) == replies.HALTED
    taker.desk.change(enabled=True)
    taker.desk.ledger.transact(lambda conn: pauses.add(conn, "gateway", "sandbox"))
    assert taker.take(1) == replies.HALTED
    taker.desk.ledger.transact(lambda conn: pauses.remove(conn, "gateway", "sandbox"))
    assert taker.arrivals(1) == 0
    assert taker.take(1).outcome == "complete"


def test_an_acceptance_that_comes_after_its_lease_still_counts(open_desk):
    taker = taker_of(open_desk, can=REPLAYS)
    taker.desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    assert taker.take(1).outcome == "unknown"
    late = taker.receipt(1)
    assert taker.desk.ledger.transact(
        lambda conn: receipts.complete(conn, key_of(1), "m-late", Proof.ACCEPTED)
    )
    assert not taker.desk.ledger.transact(lambda conn: receipts.hold(conn, late))
    assert taker.take(1).message_id == "m-late"
