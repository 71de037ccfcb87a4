"""What providers report, applied to a real ledger: in any order, at any time, and once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from digest_pipeline.gateways import references
from digest_pipeline.keys import operation_key
from digest_pipeline.ledger import attempts, provider_events, transitions
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import HASHED, RELAYS, Event
from digest_pipeline.ledger.provider_events import Taken
from digest_pipeline.outcomes import Proof
from digest_pipeline.spec_suppression import DEFAULT_SUPPRESSION
from digest_pipeline.states import State
from digest_pipeline_tests.harness.ledgers import LABEL, delivery_row, dump, plant, plant_attempt

Shared = tuple[Ledger, int]

KEY = operation_key("tiny_digest", LABEL, "default", "customer-001")
REPORTED = ("accepted", "delivered", "deferred", "bounced", "complained")
SETTLED = sorted(set(State) - {State.CLAIMED})
STAMPS = {
    "growing": lambda place: 1_000_000 + place,
    "equal": lambda _place: 1_000_000,
    "reversed": lambda place: 1_000_000 - place,
}


class Desk:
    """One transaction on the ledger, which is taken back at its end: a test plants and reads through it."""

    def __init__(self, conn: Connection, manifest: int) -> None:
        self.conn, self.manifest = conn, manifest

    @contextmanager
    def write(self) -> Iterator[Connection]:
        yield self.conn

    read = write

    def plant(self, state: str, **columns: Any) -> None:
        plant(self, self.manifest, 1, state, **columns)  # type: ignore[arg-type]

    def plant_attempt(self, **columns: Any) -> None:
        plant_attempt(self, self.manifest, 1, 1_001, **columns)  # type: ignore[arg-type]

    def report(self, kind: str, event_id: str = "", **fields: Any) -> Taken:
        """Take in one event about customer 1."""
        given = {"key": KEY, "message_id": "m-1", **fields}
        event = Event("sandbox", event_id or f"e-{kind}", EventKind(kind), **given)
        return provider_events.take_in(self.conn, event, lambda _digest: DEFAULT_SUPPRESSION).taken

    def again(self) -> list[str]:
        """Re-read what is parked, as each pass does."""
        return provider_events.apply_parked(self.conn, [self.manifest], lambda _digest: DEFAULT_SUPPRESSION)

    def row(self) -> Any:
        return delivery_row(self, self.manifest, 1)  # type: ignore[arg-type]

    def table(self, name: str) -> list[dict[str, Any]]:
        return dump(self, name)  # type: ignore[arg-type]

    @property
    def outcome(self) -> tuple[str, str | None]:
        row = self.row()
        return row.state, row.proof


@contextmanager
def opened(shared: Shared) -> Iterator[Desk]:
    ledger, manifest = shared
    with ledger.engine.connect() as conn:
        transaction = conn.begin()
        try:
            yield Desk(conn, manifest)
        finally:
            transaction.rollback()


@pytest.fixture
def desk(shared: Shared) -> Iterator[Desk]:
    with opened(shared) as found:
        yield found


@pytest.mark.parametrize("state", SETTLED)
def test_every_order_of_events_ends_in_the_same_state_from_every_state(shared: Shared, state: str) -> None:
    """CLS-14: also with equal and reversed timestamps; complained > bounced > delivered > accepted."""
    expected = ("cleaned" if state == State.CLEANED else "sent", "complained")
    orders = list(itertools.permutations(REPORTED))
    # All 120 from where they matter most; from elsewhere some in which each kind comes at each place.
    for number, order in enumerate(orders if state == State.UNKNOWN else orders[::13]):
        stamp = list(STAMPS.values())[number % 3]
        with opened(shared) as desk:
            desk.plant(state)
            for place, kind in enumerate(order):
                assert desk.report(kind, happened_at=stamp(place)) is Taken.APPLIED
            assert desk.outcome == expected, order
            assert not [row for row in desk.table("provider_event") if row["applied_at"] is None]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(
    kinds=st.lists(st.sampled_from(sorted(EventKind)), min_size=1, max_size=6),
    shuffled=st.randoms(use_true_random=False),
    state=st.sampled_from(SETTLED),
)
def test_any_events_in_any_order_end_in_one_state(
    shared: Shared, kinds: list[str], shuffled: Any, state: str
) -> None:
    """CLS-14, with rejections, opt-outs and repeats among them."""
    other = list(kinds)
    shuffled.shuffle(other)
    ends = []
    for order in (kinds, other):
        with opened(shared) as desk:
            desk.plant(state)
            for place, kind in enumerate(order):
                desk.report(kind, f"{kind}-{order[:place].count(kind)}")
            ends.append(desk.outcome)
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("order", "proof"),
    [
        (("deferred", "delivered"), "delivered"),
        (("delivered", "deferred"), "delivered"),
        (("bounced", "delivered"), "bounced"),
        (("complained", "bounced"), "complained"),
        (("delivered", "accepted"), "delivered"),
    ],
)
def test_a_late_event_never_lowers_what_is_known(desk: Desk, order: Sequence[str], proof: str) -> None:
    """CLS-14"""
    desk.plant("sent")
    for kind in order:
        desk.report(kind)
    assert desk.outcome == ("sent", proof)


def test_what_a_look_up_has_proved_is_not_lowered_either(desk: Desk) -> None:
    """CLS-14"""
    desk.plant("sent", proof="bounced")
    desk.report("delivered")
    assert desk.outcome == ("sent", "bounced")


@pytest.mark.parametrize("kind", [*REPORTED])
def test_an_unknown_is_settled_by_any_event_of_its_message(desk: Desk, kind: str) -> None:
    """CLS-15: the process died before the answer; also a deferral, since who defers a message has it."""
    desk.plant("unknown")
    desk.plant_attempt(outcome="ambiguous", message_id=None, failure_class="ambiguous")
    desk.report(kind)
    row = desk.row()
    assert row.state == "sent"
    assert (row.ambiguous_at, row.ambiguous_token, row.due_at, row.message_id) == (None, None, None, "m-1")


def test_an_event_of_a_claim_under_way_waits_for_its_end(desk: Desk) -> None:
    """CLS-15: our own answer is not stored yet; the claim, and its attempt's record, stay the sender's."""
    desk.plant("claimed")
    before = desk.row()
    assert desk.report("delivered") is Taken.PARKED
    assert desk.row() == before
    desk.again()
    assert desk.row() == before, "a live claim is never overtaken"
    row = {
        "manifest_id": desk.manifest,
        "ordinal": 1,
        "token": 1_001,
        "message_id": "m-1",
        "proof": "accepted",
    }
    assert transitions.settle_sent(desk.conn, [row])
    desk.again()
    assert desk.outcome == ("sent", "delivered")


def test_a_claim_whose_sender_died_is_settled_by_the_event_that_waited(desk: Desk) -> None:
    """CLS-15, the variant: the lease ends, and the same pass settles it without asking anybody."""
    desk.plant("claimed", lease_ends=1)
    assert desk.report("accepted") is Taken.PARKED
    expired = transitions.expire_lease(desk.conn, [desk.manifest], "sandbox", "a1", 0)
    attempts.record_expired(desk.conn, expired)
    assert desk.row().state == "unknown"
    assert desk.again() == []
    assert desk.outcome == ("sent", "accepted")


def test_what_waited_is_applied_before_a_row_can_be_tried_again(desk: Desk) -> None:
    """CLS-15: attempt 1 was accepted although it was disproved; attempt 2 fails; there must be no attempt 3."""
    desk.plant("claimed")
    desk.plant_attempt(outcome="not_sent", failure_class="transient", message_id=None)
    desk.report("delivered")
    again = {
        "manifest_id": desk.manifest,
        "ordinal": 1,
        "token": 1_001,
        "delay": 0,
        "failure_class": "transient",
    }
    assert transitions.settle_retry(desk.conn, [again])
    place = {"manifest_id": desk.manifest, "ordinal": 1}
    provider_events.apply_to_settled(desk.conn, [place], lambda _digest: DEFAULT_SUPPRESSION)
    assert desk.outcome == ("sent", "delivered")
    (attempt,) = desk.table("attempt")
    assert (attempt["late_outcome"], attempt["late_message_id"]) == ("accepted", "m-1")


def test_an_acceptance_that_a_newer_attempt_overtook_is_an_alert(desk: Desk) -> None:
    desk.plant("unknown", token=1_002, ambiguous_token=1_002)
    desk.plant_attempt(outcome="ambiguous", message_id="m-1")
    plant_attempt(desk, desk.manifest, 1, 1_002, outcome="ambiguous", message_id=None)  # type: ignore[arg-type]
    event = Event("sandbox", "e-1", EventKind.DELIVERED, KEY, "m-1")
    receipt = provider_events.take_in(desk.conn, event, lambda _digest: DEFAULT_SUPPRESSION)
    assert receipt.overtaken == (KEY,)


def test_a_message_that_was_never_rendered_moves_from_sent_to_failed(desk: Desk) -> None:
    """LOST-12"""
    desk.plant("sent", message_id="m-1")
    desk.report("rejected")
    row = desk.row()
    assert (row.state, row.proof, row.failure_class) == ("failed", None, "content")


def test_a_message_that_was_delivered_stays_so_whatever_is_said_of_its_rendering(desk: Desk) -> None:
    """LOST-12: nothing is lower than what has been proved."""
    desk.plant("sent", proof="delivered")
    desk.report("rejected")
    assert desk.outcome == ("sent", "delivered")


def test_waiting_for_delivered_keeps_the_payload_of_a_message_that_never_left(desk: Desk) -> None:
    """LOST-12: cleanup must not have removed it."""
    desk.plant("sent")
    assert transitions.clean(desk.conn, desk.manifest, 0, 100, Proof.DELIVERED, 0, "run-9") == []
    desk.report("rejected")
    assert desk.row().state == "failed"
    assert len(desk.table("content")) == 12


def test_an_unknown_is_kept_until_it_is_delivered_and_is_then_cleaned_once(desk: Desk) -> None:
    """CLN-03: time-out after the acceptance, cleanup, then a 'delivered' event."""
    desk.plant("unknown")

    def clean() -> list[int]:
        return transitions.clean(desk.conn, desk.manifest, 0, 100, Proof.DELIVERED, 0, "run-9")

    assert clean() == []
    desk.report("delivered")
    assert clean() == [1]
    assert clean() == []


def test_an_event_that_comes_again_changes_nothing(desk: Desk) -> None:
    """SEC-07: a replay is a no-op, for ever."""
    desk.plant("sent")
    desk.report("bounced", permanent=True)
    tables = {name: desk.table(name) for name in ("delivery", "provider_event", "suppression")}
    assert desk.report("bounced", permanent=True) is Taken.DUPLICATE
    assert desk.report("complained", "e-bounced") is Taken.DUPLICATE, "its identity decides, not its words"
    assert {name: desk.table(name) for name in tables} == tables


def test_an_event_of_another_providers_message_is_foreign_and_kept_nowhere(desk: Desk) -> None:
    """SEC-09"""
    desk.plant("unknown", gateway="postmark")
    assert desk.report("delivered") is Taken.FOREIGN
    assert desk.row().state == "unknown"
    assert desk.table("provider_event") == []


@pytest.mark.parametrize("relay", sorted(RELAYS))
def test_a_relay_may_have_handed_a_message_to_the_provider(desk: Desk, relay: str) -> None:
    desk.plant("unknown", gateway=relay)
    assert desk.report("delivered") is Taken.APPLIED


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "other_digest:2026-W42:customer-1"},
        {"key": None, "message_id": "of-somebody-else"},
        {"key": None, "message_id": None},
    ],
)
def test_events_of_messages_that_are_not_ours_are_kept_nowhere(desk: Desk, fields: dict[str, Any]) -> None:
    assert desk.report("bounced", permanent=True, **fields) is Taken.NOT_OURS
    assert desk.table("provider_event") == desk.table("suppression") == []


def test_an_event_without_our_key_is_found_by_the_providers_message_id(desk: Desk) -> None:
    desk.plant("sent", message_id="m-77")
    desk.plant_attempt(message_id="m-77")
    assert desk.report("delivered", key=None, message_id="m-77") is Taken.APPLIED
    assert desk.outcome == ("sent", "delivered")
    assert desk.report("bounced", key=None, message_id="m-78") is Taken.NOT_OURS


def test_a_key_that_was_too_long_for_the_provider_is_found_by_its_digest(desk: Desk) -> None:
    long_key = "tiny_digest:2025-W10:" + "c" * 200
    desk.conn.execute(text("UPDATE manifest_entry SET operation_key = :k WHERE ordinal = 1"), {"k": long_key})
    reference = references.digest_reference(long_key)
    desk.plant("claimed", lease_ends=1)
    assert desk.report("delivered", key=reference, message_id=None) is Taken.PARKED
    transitions.expire_lease(desk.conn, [desk.manifest], "sandbox", "a1", 0)
    desk.again()
    assert desk.outcome == ("sent", "delivered")


def test_events_of_a_message_that_was_pushed_here_are_kept_for_its_receipt(desk: Desk) -> None:
    """A subscriber's own ledger has receipts and no manifests."""
    pushed = "tiny_digest:2025-W10:pushed"
    desk.conn.execute(
        text(
            "INSERT INTO push_receipt (operation_key, payload_hash, state, token, attempts, received_at, ambiguous_at) "
            "VALUES (:k, 'h', 'unknown', 1, 1, 1, 1)"
        ),
        {"k": pushed},
    )
    assert provider_events.proof_of(desk.conn, pushed) is None
    for kind in ("deferred", "delivered", "unsubscribed"):
        assert desk.report(kind, key=pushed, message_id="m-9") is Taken.PARKED
    assert provider_events.proof_of(desk.conn, pushed) == (Proof.DELIVERED, "m-9")
    assert desk.again() == []


def test_both_sides_write_the_digest_of_a_long_key_alike() -> None:
    assert references.DIGEST_MARK == HASHED


def test_an_acceptance_that_no_attempt_explains_gets_a_record(desk: Desk) -> None:
    desk.plant("pending")
    desk.report("delivered")
    assert desk.outcome == ("sent", "delivered")
    (attempt,) = desk.table("attempt")
    assert (attempt["outcome"], attempt["message_id"], attempt["charged"]) == ("accepted", "m-1", False)
