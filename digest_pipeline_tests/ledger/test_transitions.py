from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

import digest_pipeline
from digest_pipeline.ledger import transitions
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.outcomes import Proof
from digest_pipeline.states import TRANSITIONS, Arrow, State
from digest_pipeline_tests.harness.ledgers import delivery_row, plant, plant_attempt, run_ledger_sql

Shared = tuple[Ledger, int]
ARROWS = {arrow.name: arrow for arrow in TRANSITIONS}
OLD, NEW = 1_001, 5_001
"""The planted token of ordinal 1, and the one a claim brings."""

_EXTRA: dict[str, dict[str, Any]] = {
    "settle_sent": {"message_id": "m-1", "proof": "accepted"},
    "settle_retry": {"delay": 60_000_000, "failure_class": "transient"},
    "settle_failed": {"failure_class": "recipient"},
    "settle_dead": {"failure_class": "transient"},
    "release_pending": {"delay": 0},
    "release_retry": {"delay": 0},
    "settle_unknown": {
        "delay": 0,
        "hold_reason": None,
        "failure_class": "ambiguous",
        "charge": 1,
        "may_have_been_sent": 1,
    },
    "disprove_unknown": {"delay": 0},
    "write_off": {},
    "apply_acceptance": {"message_id": "m-1", "proof": "accepted"},
    "replay": {"late": 60_000_000},
    "resolve_sent": {"message_id": None, "proof": "accepted"},
    "fail_sent": {"failure_class": "content"},
}
GUARDED_BY_TOKEN = sorted(set(_EXTRA) - {"apply_acceptance"})
BRINGS_A_TOKEN = ("claim", "reclaim_unknown", "doubt")
REFUSE_AMBIGUITY = [a.name for a in TRANSITIONS if a.ambiguity == "must be clear"]


def take(shared: Shared, arrow: str, token: int = OLD, **changed: Any) -> bool:
    """Try one arrow on ordinal 1; whether its function says that it moved the row."""
    ledger, manifest = shared
    with ledger.write() as conn:
        return bool(_TAKERS.get(arrow, _by_rows)(conn, manifest, arrow, token, changed))


def _by_rows(conn: Connection, manifest: int, arrow: str, token: int, changed: dict[str, Any]) -> bool:
    row = {"manifest_id": manifest, "ordinal": 1, "token": token, **_EXTRA[arrow], **changed}
    return bool(getattr(transitions, arrow)(conn, [row]))


def _claim(conn: Connection, manifest: int, arrow: str, _token: int, _changed: dict[str, Any]) -> bool:
    row = {"manifest_id": manifest, "ordinal": 1, "token": NEW}
    return bool(getattr(transitions, arrow)(conn, [row], 60_000_000, "run-9/s1", "sandbox", "a1"))


def _expire(conn: Connection, manifest: int, _arrow: str, _token: int, _changed: dict[str, Any]) -> bool:
    rows = transitions.expire_lease(conn, [manifest], "sandbox", "a1", 0)
    return 1 in {row.ordinal for row in rows}


def _clean(conn: Connection, manifest: int, _arrow: str, _token: int, _changed: dict[str, Any]) -> bool:
    return 1 in transitions.clean(conn, manifest, 0, 100, Proof.ACCEPTED, 0, "run-9")


def _suppress(conn: Connection, manifest: int, _arrow: str, _token: int, _changed: dict[str, Any]) -> bool:
    return 1 in transitions.suppress(conn, manifest, {1: "opted_out"})


def _close(conn: Connection, manifest: int, arrow: str, _token: int, _changed: dict[str, Any]) -> bool:
    conn.exec_driver_sql("UPDATE manifest SET window_closes_at = window_closes_at - 1000000000000000000")
    # The others keep a permission of their own, or they would end with it.
    conn.exec_driver_sql("UPDATE delivery SET late_until = 9000000000000000000 WHERE ordinal <> 1")
    closed = bool(getattr(transitions, arrow)(conn, manifest) == 1)
    conn.exec_driver_sql("UPDATE delivery SET late_until = NULL WHERE ordinal <> 1")
    conn.exec_driver_sql("UPDATE manifest SET window_closes_at = window_closes_at + 1000000000000000000")
    return closed


def _doubt(conn: Connection, manifest: int, _arrow: str, _token: int, _changed: dict[str, Any]) -> bool:
    row = {
        "manifest_id": manifest,
        "ordinal": 1,
        "new_token": NEW,
        "since": 1,
        "gateway": "g",
        "account": "a",
    }
    return transitions.doubt(conn, [row]) == {NEW}


_TAKERS: dict[str, Callable[..., bool]] = {
    "claim": _claim,
    "reclaim_unknown": _claim,
    "expire_lease": _expire,
    "clean": _clean,
    "suppress": _suppress,
    "close_window": _close,
    "close_manifest": _close,
    "doubt": _doubt,
}


def planted(shared: Shared, state: str, **columns: Any) -> None:
    """Put ordinal 1 into a state, ready for any arrow that may start there."""
    if state == "claimed":
        columns.setdefault("lease_ends", 1)  # over: so that expire_lease may take it, too
    plant(*shared, 1, state, **columns)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("arrow", TRANSITIONS, ids=lambda arrow: arrow.name)
def test_an_arrow_moves_a_row_from_its_sources_and_from_nowhere_else(
    shared: Shared, arrow: Arrow, state: State
) -> None:
    planted(shared, state)
    before = delivery_row(*shared, 1)
    moved = take(shared, arrow.name)
    after = delivery_row(*shared, 1)
    assert moved == (state in arrow.sources)
    if moved:
        assert after.state == arrow.target
        if arrow.name == "close_manifest":
            assert before.token is None
            assert after.token is not None  # a replay is guarded by it
        else:
            assert after.token == (NEW if arrow.name in BRINGS_A_TOKEN else before.token)
    else:
        assert after == before


@pytest.mark.parametrize("arrow", GUARDED_BY_TOKEN)
def test_a_settlement_with_another_claims_token_moves_nothing(shared: Shared, arrow: str) -> None:
    source = next(iter(ARROWS[arrow].sources))
    planted(shared, source)
    before = delivery_row(*shared, 1)
    for token in (OLD - 1, OLD + 1, NEW):
        assert not take(shared, arrow, token)
    assert delivery_row(*shared, 1) == before


@pytest.mark.parametrize("arrow", REFUSE_AMBIGUITY)
def test_an_ambiguous_claim_never_becomes_anything_that_says_not_sent(shared: Shared, arrow: str) -> None:
    planted(shared, "claimed", ambiguous_at=900, ambiguous_token=900)
    before = delivery_row(*shared, 1)
    assert not take(shared, arrow)
    assert delivery_row(*shared, 1) == before


def test_every_arrow_that_leaves_a_claim_without_an_acceptance_refuses_ambiguity_or_keeps_it() -> None:
    for arrow in TRANSITIONS:
        if State.CLAIMED in arrow.sources and arrow.target not in (State.SENT, State.UNKNOWN):
            assert arrow.ambiguity == "must be clear", arrow.name


@pytest.mark.parametrize("state", [s for s in State if s not in (State.SENT, State.CLEANED)])
def test_positive_evidence_makes_any_state_sent_and_settles_the_ambiguity(
    shared: Shared, state: State
) -> None:
    ambiguous = {"ambiguous_at": 900, "ambiguous_token": 900} if state in _MAY_BE_AMBIGUOUS else {}
    planted(shared, state, hold_reason="no_evidence", failure_class="ambiguous", **ambiguous)
    # An older attempt's token: late evidence is not fenced out.
    assert take(shared, "apply_acceptance", OLD - 1)
    row = delivery_row(*shared, 1)
    assert (row.state, row.message_id, row.proof) == ("sent", "m-1", "accepted")
    assert (row.ambiguous_at, row.ambiguous_token, row.absent_at, row.lease_ends, row.due_at) == (None,) * 5
    assert (row.suppression, row.failure_class, row.hold_reason) == (None, None, None)
    assert row.finished_at > 1_000_000


_MAY_BE_AMBIGUOUS = (State.CLAIMED, State.UNKNOWN, State.WRITTEN_OFF)


def test_late_evidence_returns_the_newest_token_so_that_a_newer_attempt_is_seen(shared: Shared) -> None:
    ledger, manifest = shared
    planted(shared, "retry")
    row = {"manifest_id": manifest, "ordinal": 1, "token": 7, "message_id": None, "proof": "delivered"}
    with ledger.write() as conn:
        (moved,) = transitions.apply_acceptance(conn, [row])
    assert moved.token == OLD


def test_a_charged_arrow_counts_one_attempt_from_the_first_claim(shared: Shared) -> None:
    for arrow in (
        "settle_sent",
        "settle_retry",
        "settle_failed",
        "settle_dead",
        "settle_unknown",
        "expire_lease",
    ):
        planted(shared, "claimed", claimed_at=77, attempts=0)
        take(shared, arrow)
        row = delivery_row(*shared, 1)
        assert (row.attempts, row.budget_from) == (1, 77), arrow
        planted(shared, "claimed", claimed_at=99, attempts=3, budget_from=77)
        take(shared, arrow)
        row = delivery_row(*shared, 1)
        assert (row.attempts, row.budget_from) == (4, 77), arrow


def test_a_release_is_no_attempt(shared: Shared) -> None:
    for arrow in ("release_pending", "release_retry"):
        planted(shared, "claimed", attempts=2, budget_from=55)
        assert take(shared, arrow)
        row = delivery_row(*shared, 1)
        assert (row.attempts, row.budget_from, row.lease_ends) == (2, 55, None)
        assert row.due_at is not None


def test_an_unknown_that_was_released_before_the_wire_is_charged_nothing_and_blames_the_older_attempt(
    shared: Shared,
) -> None:
    planted(
        shared, "claimed", attempts=1, budget_from=5, ambiguous_at=900, ambiguous_token=900, absent_at=950
    )
    assert take(shared, "settle_unknown", charge=0, may_have_been_sent=0)
    row = delivery_row(*shared, 1)
    assert (row.state, row.attempts) == ("unknown", 1)
    assert (row.ambiguous_at, row.ambiguous_token, row.absent_at) == (900, 900, 950)


def test_an_ambiguous_resend_keeps_the_first_instant_and_forgets_an_absence(shared: Shared) -> None:
    planted(shared, "claimed", claimed_at=990, ambiguous_at=900, ambiguous_token=900, absent_at=950)
    assert take(shared, "settle_unknown")
    row = delivery_row(*shared, 1)
    assert (row.ambiguous_at, row.ambiguous_token, row.absent_at) == (900, OLD, None)


def test_an_unknown_without_evidence_to_come_is_due_never(shared: Shared) -> None:
    planted(shared, "claimed")
    assert take(shared, "settle_unknown", delay=None, hold_reason="no_evidence")
    row = delivery_row(*shared, 1)
    assert (row.due_at, row.hold_reason) == (None, "no_evidence")


def test_a_lease_of_another_account_expires_to_held(shared: Shared) -> None:
    planted(shared, "claimed", account="another")
    assert take(shared, "expire_lease")
    row = delivery_row(*shared, 1)
    assert (row.state, row.due_at, row.hold_reason) == ("unknown", None, "other_account")


def test_a_lease_that_runs_is_not_expired(shared: Shared) -> None:
    planted(shared, "claimed", lease_ends=2**60)
    assert not take(shared, "expire_lease")


def test_a_resend_belongs_to_the_gateway_and_account_of_the_first_one(shared: Shared) -> None:
    for columns in ({"gateway": "smtp"}, {"account": "another"}):
        planted(shared, "unknown", **columns)
        assert not take(shared, "reclaim_unknown")


def test_a_reclaimed_unknown_stays_ambiguous(shared: Shared) -> None:
    planted(shared, "unknown", ambiguous_at=900, ambiguous_token=900)
    assert take(shared, "reclaim_unknown")
    row = delivery_row(*shared, 1)
    assert (row.state, row.ambiguous_at, row.ambiguous_token, row.token) == ("claimed", 900, 900, NEW)


def test_disproving_clears_every_trace_of_ambiguity(shared: Shared) -> None:
    planted(shared, "unknown", absent_at=950, hold_reason="key_expired")
    assert take(shared, "disprove_unknown", delay=0)
    row = delivery_row(*shared, 1)
    assert (row.ambiguous_at, row.ambiguous_token, row.absent_at, row.hold_reason) == (None,) * 4
    assert row.due_at is not None


def test_a_written_off_row_stays_ambiguous_for_late_evidence(shared: Shared) -> None:
    planted(shared, "unknown")
    assert take(shared, "write_off")
    assert delivery_row(*shared, 1).ambiguous_at is not None


def test_a_message_that_never_left_loses_its_proof(shared: Shared) -> None:
    planted(shared, "sent", message_id="m-1")
    assert take(shared, "fail_sent")
    row = delivery_row(*shared, 1)
    assert (row.proof, row.failure_class, row.message_id) == (None, "content", "m-1")


def test_no_rows_is_no_statement_and_no_error(shared: Shared) -> None:
    ledger, manifest = shared
    with ledger.write() as conn:
        for arrow in _EXTRA:
            assert not getattr(transitions, arrow)(conn, [])
        assert transitions.suppress(conn, manifest, {}) == []


def test_one_statement_moves_its_rows_and_returns_only_those(shared: Shared) -> None:
    ledger, manifest = shared
    for ordinal in range(1, 7):
        plant(ledger, manifest, ordinal, "claimed" if ordinal % 2 else "retry")
    rows = [
        {
            "manifest_id": manifest,
            "ordinal": o,
            "token": 1_000 + o,
            "message_id": f"m-{o}",
            "proof": "accepted",
        }
        for o in range(1, 7)
    ]
    with ledger.write() as conn:
        assert transitions.settle_sent(conn, rows) == {1_001, 1_003, 1_005}
    assert [delivery_row(ledger, manifest, o).message_id for o in (1, 2, 3)] == ["m-1", None, "m-3"]


def test_the_table_names_functions_of_transitions_and_each_takes_its_own_arrow() -> None:
    assert len(ARROWS) == len(TRANSITIONS)
    for arrow in TRANSITIONS:
        assert inspect.isfunction(getattr(transitions, arrow.name, None)), arrow.name


def test_nothing_but_transitions_writes_the_state_of_a_delivery() -> None:
    """Only ``transitions`` updates it; ``manifests`` makes the rows."""
    package = Path(digest_pipeline.__file__).parent
    writers = {
        str(path.relative_to(package)) for path in package.rglob("*.py") if _sets_a_delivery_state(path)
    }
    assert writers == {"ledger/transitions.py"}
    inserts = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(
            r"bulk_insert\(\w+, delivery\b|insert\(delivery\)|\bdelivery\.insert\(|INTO delivery\b",
            path.read_text(),
        )
    }
    assert inserts == {"ledger/manifests.py"}


def _sets_a_delivery_state(path: Path) -> bool:
    source = path.read_text(encoding="utf-8")
    if re.search(r"UPDATE\s+delivery\b", source):
        return True
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "values":
            target = ast.unparse(call.func.value)
            if re.search(r"update\((delivery|schema\.delivery)\)|delivery\.update\(", target):
                names = [keyword.arg for keyword in call.keywords] + [
                    key.value
                    for a in call.args
                    if isinstance(a, ast.Dict)
                    for key in a.keys
                    if isinstance(key, ast.Constant)
                ]
                if "state" in names or (None in names and "state" in ast.unparse(call)):
                    return True
    return False


@pytest.mark.parametrize(
    "said",
    [{"outcome": "accepted"}, {"outcome": "expired", "late_outcome": "accepted"}],
    ids=["then", "late"],
)
def test_a_replay_moves_nothing_that_was_ever_accepted(shared: Shared, said: dict[str, Any]) -> None:
    """Whatever the caller has looked at: the guard is in the statement."""
    planted(shared, "dead")
    plant_attempt(*shared, 1, OLD, **said)
    try:
        assert not take(shared, "replay")
    finally:
        run_ledger_sql(shared[0], "DELETE FROM attempt")
    assert delivery_row(*shared, 1).state == "dead"
    assert take(shared, "replay")
