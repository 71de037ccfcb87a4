"""Who is left alone, why, and until when; and that the claim heeds it to the last moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from digest_pipeline.addresses import address_hash
from digest_pipeline.ledger import claims, provider_events, suppressions
from digest_pipeline.ledger.claims import Claimer
from digest_pipeline.ledger.dialects import host_microseconds
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.spec_suppression import Suppression
from digest_pipeline.states import SuppressionReason
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    customer,
    dump,
    frozen_period,
    migrated,
    states,
    tiny_source,
    tiny_spec,
    write_customers,
)
from digest_pipeline_tests.ledger.test_provider_events import KEY, Desk, Shared, opened

DAY = 86_400_000_000
LIMITS = Suppression()
BOUNCED, COMPLAINED, OPTED_OUT = (
    SuppressionReason.BOUNCED,
    SuppressionReason.COMPLAINED,
    SuppressionReason.OPTED_OUT,
)
WHO = Claimer("run-1/s1", "sandbox", "a1", 60_000_000)


@pytest.fixture
def desk(shared: Shared) -> Iterator[Desk]:
    with opened(shared) as found:
        found.plant("sent", message_id="m-1")
        yield found


def add(desk: Desk, reason: SuppressionReason, lasts: int | None = None) -> bool:
    return suppressions.add(desk.conn, "default", "h1", reason, lasts=lasts, source="operator")


def entry(desk: Desk) -> tuple[str, bool]:
    """The one entry: its reason, and whether it ever ends."""
    (row,) = desk.table("suppression")
    return row["reason"], row["expires_at"] is not None


def bounce(desk: Desk, number: int, *, days_ago: float = 0, permanent: bool = False) -> None:
    """Let customer 1's message of another week bounce, so many days ago."""
    happened = host_microseconds() - int(days_ago * DAY)
    key = f"tiny_digest:2024-W{number:02d}:customer-001"
    # Another week of the same customer: this message's identity is all that differs.
    desk.conn.execute(text("UPDATE manifest_entry SET operation_key = :k WHERE ordinal = 1"), {"k": key})
    event = Event("sandbox", f"b-{number}", EventKind.BOUNCED, key, None, happened, permanent)
    provider_events.take_in(desk.conn, event, lambda _digest: LIMITS)


def active(desk: Desk) -> list[str]:
    return [row.reason for row in suppressions.active(desk.conn, "default", 10)]


@pytest.mark.parametrize("reason", [BOUNCED, COMPLAINED, OPTED_OUT])
def test_an_opt_out_is_never_shortened_or_replaced(desk: Desk, reason: SuppressionReason) -> None:
    assert add(desk, OPTED_OUT)
    assert not add(desk, reason, lasts=DAY)
    assert entry(desk) == ("opted_out", False)


def test_a_stronger_reason_replaces_a_weaker_one_and_never_ends_sooner(desk: Desk) -> None:
    add(desk, BOUNCED)
    add(desk, COMPLAINED, lasts=DAY)
    assert entry(desk) == ("complained", False)
    add(desk, OPTED_OUT)
    assert entry(desk) == ("opted_out", False)


def test_of_two_expiries_the_later_one_stays(desk: Desk) -> None:
    add(desk, BOUNCED, lasts=10 * DAY)
    assert not add(desk, BOUNCED, lasts=DAY)
    assert add(desk, BOUNCED, lasts=20 * DAY)
    (row,) = desk.table("suppression")
    assert row["expires_at"] - row["since_at"] >= 20 * DAY


def test_an_entry_that_ran_out_counts_for_nothing_and_is_replaced(desk: Desk) -> None:
    add(desk, OPTED_OUT, lasts=-1)
    assert active(desk) == []
    add(desk, BOUNCED, lasts=DAY)
    assert active(desk) == ["bounced"]


def test_one_hard_bounce_suppresses_for_a_time(desk: Desk) -> None:
    """CLS-13: a server that recovers next day must not end a customer's mail for ever."""
    bounce(desk, 1, permanent=True)
    (row,) = desk.table("suppression")
    assert row["reason"] == "bounced"
    assert row["expires_at"] - row["since_at"] == 90 * DAY


def test_soft_bounces_suppress_when_they_become_too_many_over_weeks(desk: Desk) -> None:
    """CLS-13: 'message expired' for four weekly runs."""
    for number, days_ago in ((1, 21), (2, 14), (3, 7)):
        bounce(desk, number, days_ago=days_ago)
        assert active(desk) == []
    bounce(desk, 4)
    assert active(desk) == ["bounced"]
    (row,) = desk.table("suppression")
    assert row["expires_at"] - row["since_at"] == 30 * DAY


def test_soft_bounces_of_one_message_count_once_and_old_ones_not_at_all(desk: Desk) -> None:
    """CLS-13"""
    for number in range(1, 4):
        bounce(desk, number, days_ago=100)
    for repeat in range(5):
        desk.plant("sent")
        event = Event("sandbox", f"r-{repeat}", EventKind.BOUNCED, "tiny_digest:2024-W03:customer-001")
        provider_events.take_in(desk.conn, event, lambda _digest: LIMITS)
    assert active(desk) == []


def test_a_lift_is_remembered_so_that_only_new_bounces_suppress_again(desk: Desk) -> None:
    """CLS-13: an operator can lift it, and the bounces so far do not bring it back."""
    bounce(desk, 1, days_ago=1, permanent=True)
    (row,) = desk.table("suppression")
    assert suppressions.lift(desk.conn, "default", row["address_hash"]) is BOUNCED
    assert active(desk) == []
    bounce(desk, 2, days_ago=2, permanent=True)  # an old one that comes late
    assert active(desk) == []
    bounce(desk, 3, days_ago=-0.01, permanent=True)
    assert active(desk) == ["bounced"]


def test_lifting_what_is_not_suppressed_is_nothing(desk: Desk) -> None:
    assert suppressions.lift(desk.conn, "default", "h1") is None
    add(desk, BOUNCED, lasts=-1)
    assert suppressions.lift(desk.conn, "default", "h1") is None


@pytest.mark.parametrize(("kind", "reason"), [("complained", COMPLAINED), ("unsubscribed", OPTED_OUT)])
def test_complaints_and_opt_outs_suppress_at_once_and_for_good(
    desk: Desk, kind: str, reason: SuppressionReason
) -> None:
    desk.report(kind)
    assert entry(desk) == (reason, False)


def test_neither_a_deferral_nor_a_delivery_suppresses_anybody(desk: Desk) -> None:
    for kind in ("accepted", "deferred", "delivered"):
        desk.report(kind)
    desk.report("rejected")  # the content was to blame
    assert desk.table("suppression") == []


def test_a_bounce_counts_although_a_claim_is_under_way(desk: Desk) -> None:
    desk.plant("claimed")
    desk.report("bounced", permanent=True)
    assert active(desk) == ["bounced"]


def test_limits_are_the_digests(desk: Desk) -> None:
    once = Suppression(soft_bounces=1, soft_bounce_days=3)
    event = Event("sandbox", "b-1", EventKind.BOUNCED, KEY)
    provider_events.take_in(desk.conn, event, {"tiny_digest": once}.__getitem__)
    (row,) = desk.table("suppression")
    assert row["expires_at"] - row["since_at"] == 3 * DAY


def test_an_opt_out_between_freeze_and_claim_is_not_sent_and_leaves_the_manifest_as_it_was(
    tmp_path: Path, ledger_url: str
) -> None:
    """SEC-15: and INP-15: however the address is spelt, also as an IDN in A-labels."""
    spelt = {2: "Ann@EXAMPLE.test", 3: "bo@xn--bcher-kva.test"}
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, customers=1) as source:
        write_customers(tmp_path, (customer(number, email=email) for number, email in spelt.items()))
        (manifest,) = frozen_period(ledger, tiny_spec(tmp_path), PERIOD, source)
        frozen = dump(ledger, "manifest"), dump(ledger, "manifest_entry"), dump(ledger, "content")
        with ledger.write() as conn:
            key = conn.execute(
                text("SELECT operation_key FROM manifest_entry WHERE ordinal = 2")
            ).scalar_one()
            assert suppressions.opt_out(conn, key, "unsubscribe")
            hashed = address_hash("bo@b\u00fccher.test")
            suppressions.add(conn, "default", hashed, OPTED_OUT, lasts=None, source="operator")
        with ledger.write() as conn:
            batch = claims.claim_due(conn, manifest, 10, WHO)
        assert [claimed.ordinal for claimed in batch.claimed] == [1]
        assert batch.suppressed == 2
        assert states(ledger, manifest) == {1: "claimed", 2: "suppressed", 3: "suppressed"}
        assert (dump(ledger, "manifest"), dump(ledger, "manifest_entry"), dump(ledger, "content")) == frozen


def test_an_opt_out_counts_in_its_own_tenant_only(desk: Desk) -> None:
    suppressions.opt_out(desk.conn, KEY, "unsubscribe")
    (row,) = desk.table("suppression")
    assert row["tenant"] == "default"
    assert suppressions.active(desk.conn, "another", 10) == []


def test_an_opt_out_of_an_unknown_key_is_told_apart(desk: Desk) -> None:
    known: Any = suppressions.opt_out(desk.conn, "tiny_digest:2025-W10:nobody", "unsubscribe")
    assert known is None
    assert desk.table("suppression") == []
