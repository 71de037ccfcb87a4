"""The arrows of a pushed key: from which states each goes, and that none passes a newer claim."""

import json
from functools import partial

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from digest_pipeline.ledger import provider_events, receipts, suppressions
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.ledger.receipts import ReceiptState
from digest_pipeline.ledger.schema import operator_action, suppression
from digest_pipeline.operations import receipts as operations
from digest_pipeline.operations.resolve import Verdict
from digest_pipeline.outcomes import FailureClass, Proof
from digest_pipeline.spec_suppression import DEFAULT_SUPPRESSION
from digest_pipeline_tests.harness.ledgers import migrated

KEY, HASH = "d:2026-W42:c", "0" * 64
TOKEN = 7
COLUMNS: dict[str, dict[str, object]] = {
    "received": {},
    "sending": {"lease_ends": 2**60, "claimed_at": 1},
    "unknown": {"ambiguous_at": 1, "ended_at": 2, "claimed_at": 1, "absent_at": 3},
    "complete": {"finished_at": 1, "proof": "accepted"},
    "rejected": {"finished_at": 1, "failure_class": "recipient"},
}


@pytest.fixture
def ledger(ledger_url):
    with migrated(ledger_url) as opened:
        yield opened


def plant(ledger, state, **changed):
    values = {"state": state, "token": TOKEN, "gateway": "g", "account": "a", **COLUMNS[state], **changed}
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    with ledger.write() as conn:
        conn.execute(text("DELETE FROM push_receipt"))
        conn.execute(
            text(
                f"INSERT INTO push_receipt (operation_key, payload_hash, attempts, received_at, {names})"
                f" VALUES (:key, :hash, 1, 1, {marks})"
            ),
            {"key": KEY, "hash": HASH, **values},
        )


def now_at(ledger):
    with ledger.read() as conn:
        return receipts.read(conn, KEY)


ARROWS = {
    "complete": (lambda conn, r: receipts.complete(conn, KEY, "m", Proof.ACCEPTED),
                 {"received", "sending", "unknown", "rejected"}, "complete"),
    "reject": (lambda conn, r: receipts.reject(conn, KEY, r.token, FailureClass.CONTENT, "", suppressed=False),
               {"sending"}, "rejected"),
    "refuse": (lambda conn, r: receipts.refuse(conn, r, FailureClass.CONTENT, "", suppressed=False),
               {"received"}, "rejected"),
    "release": (lambda conn, r: receipts.release(conn, KEY, r.token, delay=0, charged=False), {"sending"}, "received"),
    "doubt": (lambda conn, r: receipts.doubt(conn, KEY, r.token, delay=0, again=True, charged=True, detail=""),
              {"sending"}, "unknown"),
    "claim": (lambda conn, r: receipts.claim(conn, r, "g", "a", 60) is not None, {"received", "unknown"}, "sending"),
    "hold": (receipts.hold, {"unknown"}, "unknown"),
    "note_absence": (lambda conn, r: receipts.note_absence(conn, r, 5), {"unknown"}, "unknown"),
    "disprove": (receipts.disprove, {"unknown"}, "received"),
    "expire": (lambda conn, r: receipts.expire(conn, KEY, r.token, delay=0), set(), "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("arrow", ARROWS)
def test_each_arrow_goes_from_its_states_and_from_no_other(ledger, arrow):
    act, allowed, end = ARROWS[arrow]
    for state in ReceiptState:
        plant(ledger, state)
        seen = now_at(ledger)
        changed = ledger.transact(lambda conn, seen=seen: act(conn, seen))
        assert changed is (state in allowed), state
        assert now_at(ledger).state == (end if state in allowed else state)


@pytest.mark.parametrize("arrow", sorted(ARROWS.keys() - {"complete"}))
def test_no_arrow_passes_a_newer_claim(ledger, arrow):
    act, allowed, _ = ARROWS[arrow]
    for state in allowed:
        plant(ledger, state)
        seen = now_at(ledger)
        plant(ledger, state, token=TOKEN + 1)
        assert not ledger.transact(lambda conn, seen=seen: act(conn, seen))


def test_a_lease_ends_a_claim_only_once_it_is_over(ledger):
    plant(ledger, "sending", lease_ends=5)
    assert ledger.transact(lambda conn: receipts.expire(conn, KEY, TOKEN, delay=10))
    found = now_at(ledger)
    assert (found.state, found.ambiguous_at, found.ended_at, found.due_at) == (ReceiptState.UNKNOWN, 1, 5, 15)


def test_while_in_doubt_neither_a_refusal_nor_a_release_ends_it(ledger):
    plant(ledger, "sending", ambiguous_at=1)
    for arrow in ("reject", "release"):
        act = ARROWS[arrow][0]
        assert not ledger.transact(lambda conn, act=act: act(conn, now_at(ledger)))
    assert now_at(ledger).state is ReceiptState.SENDING


def test_what_is_in_doubt_is_claimed_by_the_same_gateway_and_account_only(ledger):
    plant(ledger, "unknown")
    for gateway, account in (("g", "other"), ("other", "a")):
        act = partial(receipts.claim, receipt=now_at(ledger), gateway=gateway, account=account, lease=60)
        assert ledger.transact(act) is None
    assert ledger.transact(lambda conn: receipts.claim(conn, now_at(ledger), "g", "a", 60)) is not None


def test_a_doubt_keeps_the_first_instant_and_forgets_an_absence(ledger):
    plant(ledger, "sending", ambiguous_at=1, claimed_at=50, absent_at=9)
    assert ledger.transact(
        lambda conn: receipts.doubt(conn, KEY, TOKEN, delay=None, again=True, charged=True, detail="")
    )
    found = now_at(ledger)
    assert (found.ambiguous_at, found.absent_at, found.due_at) == (1, None, None)


@pytest.mark.parametrize(
    ("state", "changed"),
    [
        ("received", {"lease_ends": 1}),
        ("sending", {"lease_ends": None}),
        ("unknown", {"ambiguous_at": None}),
        ("received", {"ambiguous_at": 1}),
        ("rejected", {"ambiguous_at": 1}),
        ("rejected", {"failure_class": None}),
        ("complete", {"finished_at": None}),
    ],
)
def test_the_database_refuses_what_no_arrow_makes(ledger, state, changed):
    with pytest.raises(IntegrityError):
        plant(ledger, state, **changed)


def test_the_states_of_the_code_are_those_of_the_database(ledger):
    for state in ReceiptState:
        plant(ledger, state)
    with ledger.write() as conn, pytest.raises(IntegrityError):
        conn.execute(text("UPDATE push_receipt SET state = 'lost', finished_at = NULL"))


PERSON = {"who": "ann", "reason": "the provider's ticket 4711"}


@pytest.mark.parametrize(
    ("state", "verdict", "after"),
    [
        ("unknown", Verdict.SENT, "complete"),
        ("unknown", Verdict.NOT_SENT, "received"),
        ("rejected", Verdict.NOT_SENT, "received"),
        ("rejected", Verdict.SENT, None),
        ("sending", Verdict.NOT_SENT, None),
        ("complete", Verdict.NOT_SENT, None),
        ("received", Verdict.SENT, None),
    ],
)
def test_a_person_settles_what_nothing_else_moves_and_nothing_else(ledger, state, verdict, after):
    plant(ledger, state)
    look = operations.resolve(ledger, [KEY], verdict, **PERSON, apply=False)
    assert now_at(ledger).state == state
    done = operations.resolve(ledger, [KEY, "d:p:another"], verdict, **PERSON, apply=True)
    assert look.changed == done.changed == ([KEY] if after else [])
    assert done.refused["d:p:another"] == "it was never pushed here"
    assert done.refused.get(KEY) == (None if after else f"it is {state}")
    assert now_at(ledger).state == (after or state)
    with ledger.read() as conn:
        trail = conn.execute(select(operator_action)).all()
    assert [(row.kind, row.who, json.loads(row.keys)) for row in trail] == (
        [("resolve push", "ann", [KEY])] if after else []
    )


def test_what_waits_for_a_person_is_listed(ledger):
    plant(ledger, "unknown", due_at=5)
    assert operations.listed(ledger, 10) == []
    plant(ledger, "unknown")
    assert [row.state for row in operations.listed(ledger, 10)] == ["unknown"]
    plant(ledger, "rejected")
    assert [row.state for row in operations.listed(ledger, 10)] == ["rejected"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (EventKind.COMPLAINED, "complained"),
        (EventKind.BOUNCED, "bounced"),
        (EventKind.UNSUBSCRIBED, "opted_out"),
        ("one click", "opted_out"),
    ],
)
def test_what_is_said_of_a_pushed_message_keeps_its_address_alone(ledger, said, reason):
    """CLS-13, SEC-15: the subscriber's ledger has no manifest, and knows only whom it sent a key to."""
    ledger.transact(lambda conn: receipts.receive(conn, KEY, HASH))
    token = ledger.transact(lambda conn: receipts.claim(conn, now_at(ledger), "resend", "a", 60))
    ledger.transact(lambda conn: receipts.address(conn, KEY, token, "d", "acme", "ab" * 32))
    ledger.transact(lambda conn: receipts.complete(conn, KEY, "m1", Proof.ACCEPTED))
    if said == "one click":
        assert ledger.transact(lambda conn: suppressions.opt_out(conn, KEY, "unsubscribe"))
    else:
        event = Event("resend", "e1", said, KEY, permanent=True)
        for taken in ("parked", "duplicate"):
            receipt = ledger.transact(
                lambda conn: provider_events.take_in(conn, event, lambda _digest: DEFAULT_SUPPRESSION)
            )
            assert receipt.taken == taken
    with ledger.read() as conn:
        rows = conn.execute(select(suppression)).all()
    assert [(row.tenant, row.address_hash, row.reason, row.operation_key) for row in rows] == [
        ("acme", "ab" * 32, reason, KEY)
    ]
