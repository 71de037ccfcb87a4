"""What a call under one key carries: fixed before the wire or not at all, and claimed again whole or not at all."""

import json

import pytest
from sqlalchemy import select

from digest_pipeline.ledger import batches, claims, doubts
from digest_pipeline.ledger.claims import Claimer
from digest_pipeline.ledger.schema import send_batch
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    delivery_row,
    frozen_period,
    migrated,
    run_ledger_sql,
    tiny_source,
    tiny_spec,
)

ME = Claimer("run-1/s1", "resend", "a1", 60_000_000)
HOUR = 3_600_000_000


@pytest.fixture
def stage(tmp_path, ledger_url):
    """A ledger with six due deliveries."""
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, 6) as source:
        yield ledger, frozen_period(ledger, tiny_spec(tmp_path), PERIOD, source)[0]


def claimed(ledger, manifest, limit=6):
    return ledger.transact(lambda conn: claims.claim_due(conn, manifest, limit, ME)).claimed


def freeze(ledger, *calls):
    return ledger.transact(lambda conn: batches.freeze(conn, ME, calls))


def make_unknown(ledger, *ordinals):
    """End the claims of a batch as attempts of which nobody knows what became of them."""
    for ordinal in ordinals:
        run_ledger_sql(
            ledger,
            "INSERT INTO attempt (token, manifest_id, ordinal, claimed_by, gateway, account, batch_id, claimed_at, "
            "ended_at, stage, outcome, charged) SELECT token, manifest_id, ordinal, claimed_by, gateway, account, "
            "batch_id, claimed_at, claimed_at, 'on_wire', 'ambiguous', true FROM delivery WHERE ordinal = :n",
            n=ordinal,
        )
        run_ledger_sql(
            ledger,
            "UPDATE delivery SET state = 'unknown', lease_ends = NULL, due_at = 1, ambiguous_at = claimed_at, "
            "ambiguous_token = token WHERE ordinal = :n",
            n=ordinal,
        )


def repeat(ledger, manifest, who=ME, lifetime=HOUR):
    def work(conn):
        found = batches.repeatable(conn, manifest, who, lifetime)
        return batches.claim(conn, manifest, found.id, who) if found else ()

    return ledger.transact(work)


def test_members_and_their_order_are_written_down_with_the_key(stage):
    ledger, manifest = stage
    rows = claimed(ledger, manifest)
    call = [rows[2], rows[0], rows[1]]
    (batch_id,) = freeze(ledger, call)
    with ledger.read() as conn:
        (row,) = conn.execute(select(send_batch)).all()
    assert (row.id, row.gateway, row.account, row.size) == (batch_id, "resend", "a1", 3)
    assert json.loads(row.members) == [one.operation_key for one in call]
    found = [delivery_row(ledger, manifest, n).batch_id for n in range(1, 7)]
    assert found == [batch_id] * 3 + [None] * 3


def test_a_key_is_of_these_claims_in_this_order_and_of_no_others(stage):
    rows = claimed(*stage)
    keys = {
        batches.batch_id(who, call)
        for who in (ME, Claimer("run-2", "resend", "a2", 1))
        for call in (rows, rows[:5], [rows[1], rows[0], *rows[2:]])
    }
    assert len(keys) == 6
    assert batches.batch_id(ME, rows) == batches.batch_id(ME, list(rows))


def test_a_commit_whose_answer_was_lost_can_be_made_again(stage):
    rows = claimed(*stage)
    assert freeze(stage[0], rows) == freeze(stage[0], rows)


def test_one_lost_claim_leaves_nothing_written(stage):
    ledger, manifest = stage
    rows = claimed(ledger, manifest)
    make_unknown(ledger, 4)
    assert freeze(ledger, rows[:2], rows[2:]) is None
    assert run_ledger_sql(ledger, "SELECT 1 FROM send_batch") == []
    assert {delivery_row(ledger, manifest, n).batch_id for n in range(1, 7)} == {None}


def test_a_new_first_claim_leaves_the_old_batch(stage):
    ledger, manifest = stage
    freeze(ledger, claimed(ledger, manifest))
    run_ledger_sql(ledger, "UPDATE delivery SET state = 'retry', lease_ends = NULL, due_at = 1")
    assert {row.batch_id for row in claimed(ledger, manifest)} == {None}
    assert {delivery_row(ledger, manifest, n).batch_id for n in range(1, 7)} == {None}


def test_a_batch_in_doubt_is_claimed_whole_in_wire_order_and_never_by_its_members(stage):
    ledger, manifest = stage
    rows = claimed(ledger, manifest)
    call = [rows[2], rows[0], rows[1]]
    (batch_id,) = freeze(ledger, call)
    make_unknown(ledger, 1, 2, 3)
    alone = ledger.transact(
        lambda conn: claims.claim_unknown(conn, manifest, 9, ME, HOUR, keyed_batches=True)
    )
    assert alone.claimed == ()
    again = repeat(ledger, manifest)
    assert [one.operation_key for one in again] == [one.operation_key for one in call]
    assert {(one.batch_id, one.is_ambiguous) for one in again} == {(batch_id, True)}
    assert repeat(ledger, manifest) == ()


def test_a_batch_waits_for_a_member_whose_claim_is_still_under_way(stage):
    ledger, manifest = stage
    freeze(ledger, claimed(ledger, manifest))
    make_unknown(ledger, 1, 2, 3, 4, 5)
    assert repeat(ledger, manifest) == ()
    assert asked(ledger, manifest) == []
    make_unknown(ledger, 6)
    assert asked(ledger, manifest) == []
    assert len(repeat(ledger, manifest)) == 6


def asked(ledger, manifest):
    """Return the ordinals of unknowns for which no repeat can help."""
    with ledger.read() as conn:
        rows = doubts.to_ask(conn, [manifest], ME.gateway, ME.account, HOUR, 10, keyed_batches=True)
    return [row.ordinal for row in rows]


@pytest.mark.parametrize(
    "leaves",
    [
        "UPDATE delivery SET state = 'written_off', finished_at = 1, due_at = NULL WHERE ordinal = 2",
        "UPDATE delivery SET due_at = NULL, hold_reason = 'no_evidence' WHERE ordinal = 2",
        "UPDATE delivery SET batch_id = 'another' WHERE ordinal = 2",
        "UPDATE delivery SET ambiguous_at = 1 WHERE ordinal = 2",
        "UPDATE attempt SET batch_id = NULL WHERE ordinal = 2",
        "UPDATE manifest_entry SET recipient = NULL WHERE ordinal = 2",
        "DELETE FROM content WHERE ordinal = 2",
    ],
)
def test_a_batch_that_one_member_has_left_is_never_claimed_and_its_rest_is_asked_about(stage, leaves):
    ledger, manifest = stage
    freeze(ledger, claimed(ledger, manifest))
    make_unknown(ledger, *range(1, 7))
    run_ledger_sql(ledger, leaves)
    assert repeat(ledger, manifest) == ()
    assert set(asked(ledger, manifest)) >= {1, 3, 4, 5, 6}


@pytest.mark.parametrize("who", [Claimer("r", "resend", "a2", 1), Claimer("r", "postmark", "a1", 1)])
def test_only_its_own_gateway_and_account_claim_a_batch_again(stage, who):
    ledger, manifest = stage
    freeze(ledger, claimed(ledger, manifest))
    make_unknown(ledger, *range(1, 7))
    assert repeat(ledger, manifest, who) == ()


@pytest.mark.parametrize(
    "not_now",
    [
        "UPDATE manifest SET window_closes_at = 1, window_opens_at = 0",
        "INSERT INTO pause (kind, name, since_at) VALUES ('gateway', 'resend', 1)",
        "UPDATE manifest SET in_doubt_from_at = 1",
        f"UPDATE delivery SET due_at = {2**60}",
    ],
)
def test_a_batch_is_not_claimed_while_its_members_could_not_be(stage, not_now):
    ledger, manifest = stage
    freeze(ledger, claimed(ledger, manifest))
    make_unknown(ledger, *range(1, 7))
    run_ledger_sql(ledger, not_now)
    assert repeat(ledger, manifest) == ()
