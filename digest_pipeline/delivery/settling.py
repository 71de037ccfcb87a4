"""Writing results: small groups, one statement per arrow and group, in key order.

Only the write is ever repeated, never the send. A row whose data the database refuses is settled
alone, with a constant detail, so that it cannot hold up the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError

from digest_pipeline import faults, telemetry
from digest_pipeline.delivery.retry_policy import Again, Release, Sent, Settlement, Stop, Unknown, describe
from digest_pipeline.ledger import acceptances, attempts, provider_events, suppressions, transitions
from digest_pipeline.ledger.attempts import Attempt
from digest_pipeline.ledger.claims import Claimed, Claimer
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.outcomes import Accepted, FailureClass, Outcome, Refused, Stage
from digest_pipeline.spec_suppression import DEFAULT_SUPPRESSION, Suppression
from digest_pipeline.states import State

_MICROS = 1_000_000
# A lone surrogate in a provider's text is refused by the drivers, before any database sees it.
_REFUSED = (DataError, IntegrityError, UnicodeError)
_ARROWS: dict[str, Callable[[Connection, transitions.Rows], set[int]]] = {
    "settle_sent": transitions.settle_sent,
    "settle_retry": transitions.settle_retry,
    "settle_failed": transitions.settle_failed,
    "settle_dead": transitions.settle_dead,
    "settle_unknown": transitions.settle_unknown,
    "release_pending": transitions.release_pending,
    "release_retry": transitions.release_retry,
}


@dataclass(frozen=True, slots=True)
class Result:
    """One claim's end: what the provider said (None: released before the wire) and what follows."""

    claimed: Claimed
    outcome: Outcome | None
    settlement: Settlement


def unsent(claimed: Claimed) -> Settlement:
    """Return what becomes of a claim whose request surely never left: no attempt, as ambiguous as before."""
    if claimed.is_ambiguous:
        return Unknown(0.0, FailureClass.AMBIGUOUS, charged=False, may_have_been_sent=False)
    return Release(0.0)


def give_back(conn: Connection, who: Claimer, claims: Sequence[Claimed]) -> set[int]:
    """Release claims that surely were not used; return the tokens of those that existed at all."""
    if not claims:
        return set()
    return _move(conn, who, [Result(claimed, None, unsent(claimed)) for claimed in claims])[0]


def settle(
    ledger: Ledger, who: Claimer, results: Sequence[Result], limits: Suppression = DEFAULT_SUPPRESSION
) -> int:
    """Write a group of results; return how many claims had been lost meanwhile.

    In the same transaction, addresses that the provider refuses for good are suppressed within ``limits``,
    and what it has reported meanwhile about these messages is applied.
    Raises only when the ledger cannot be reached for longer than its patience; the rows then become
    unknown when their leases end. So does a single row that the ledger refuses in any form.
    """
    if not results:
        return 0
    ordered = sorted(results, key=lambda r: (r.claimed.manifest_id, r.claimed.ordinal))
    try:
        late = ledger.transact(lambda conn: _settle_in(conn, who, ordered, limits))
    except _REFUSED:
        return sum(_settle_alone(ledger, who, one, limits) for one in ordered)
    _log(ordered)
    return late


def _settle_alone(ledger: Ledger, who: Claimer, result: Result, limits: Suppression) -> int:
    for one in (result, _without_data(result)):
        with suppress(*_REFUSED):
            late = ledger.transact(partial(_settle_in, who=who, results=[one], limits=limits))
            _log([one])
            return late
    # One unknown when its lease ends, rather than a run that stops for everybody.
    telemetry.result_refused(result.claimed.operation_key, result.claimed.token)
    return 0


def _log(results: Sequence[Result]) -> None:
    """One line per attempt, after it is durable: inside the transaction a repeat would log it twice."""
    for result in results:
        word, failure_class, _, detail = _described(result)
        claimed = result.claimed
        telemetry.attempt_ended(claimed.operation_key, claimed.token, word, failure_class, detail)


def _settle_in(conn: Connection, who: Claimer, results: Sequence[Result], limits: Suppression) -> int:
    settled, records = _move(conn, who, results, limits)
    lost = [r for r in results if r.claimed.token not in settled]
    late = _settle_late(conn, lost, [records[r.claimed.token] for r in lost])
    faults.reach(faults.Point.BEFORE_SETTLE_COMMIT)
    return late


def _move(
    conn: Connection, who: Claimer, results: Sequence[Result], limits: Suppression = DEFAULT_SUPPRESSION
) -> tuple[set[int], dict[int, Attempt]]:
    """Take every result's arrow and record the attempts of those that still held their claim."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        arrow, fields = _arrow(result)
        c = result.claimed
        groups[arrow].append({"manifest_id": c.manifest_id, "ordinal": c.ordinal, "token": c.token, **fields})
    settled: set[int] = set()
    for arrow, rows in groups.items():
        settled |= _ARROWS[arrow](conn, rows)
    records = {r.claimed.token: _record(r, who) for r in results}
    attempts.record(conn, [records[token] for token in sorted(settled)])
    _hear_the_provider(conn, [result for result in results if result.claimed.token in settled], limits)
    return settled, records


def _hear_the_provider(conn: Connection, settled: Sequence[Result], limits: Suppression) -> None:
    """Suppress the addresses it refuses for good, and apply the events that waited for these claims.

    Before the rows can be claimed again: an event may prove that one which is to be tried again was sent.
    """
    gone = [r for r in settled if isinstance(r.outcome, Refused) and r.outcome.suppressed]
    suppressions.suppress_refused(conn, [_place(result) for result in gone], limits)
    places = [_place(result) for result in settled]
    telemetry.overtaken(provider_events.apply_to_settled(conn, places, lambda _digest: limits))


def _place(result: Result) -> dict[str, int]:
    return {"manifest_id": result.claimed.manifest_id, "ordinal": result.claimed.ordinal}


def _settle_late(conn: Connection, lost: Sequence[Result], records: Sequence[Attempt]) -> int:
    """Keep what came back after the claim was lost; an acceptance is a fact and is applied."""
    late = attempts.record_late(conn, records)
    accepted = [
        {
            "manifest_id": r.claimed.manifest_id,
            "ordinal": r.claimed.ordinal,
            "token": r.claimed.token,
            "message_id": r.outcome.message_id,
            "proof": r.outcome.proof,
        }
        for r in lost
        if r.claimed.token in late and isinstance(r.outcome, Accepted)
    ]
    overtaken = acceptances.apply(conn, accepted)
    if late:
        telemetry.late_result(len(late), len(accepted))
    telemetry.overtaken(overtaken)
    return len(late)


def _arrow(result: Result) -> tuple[str, dict[str, Any]]:
    match result.settlement:
        case Sent(message_id=message_id, proof=proof):
            return "settle_sent", {"message_id": message_id, "proof": proof}
        case Again(delay=delay, failure_class=failure_class):
            return "settle_retry", {"delay": int(delay * _MICROS), "failure_class": failure_class}
        case Stop(failure_class=failure_class, dead=dead):
            return "settle_dead" if dead else "settle_failed", {"failure_class": failure_class}
        case Unknown() as unknown:
            return "settle_unknown", {
                "delay": None if unknown.delay is None else int(unknown.delay * _MICROS),
                "hold_reason": unknown.hold,
                "failure_class": unknown.failure_class,
                "charge": int(unknown.charged),
                "may_have_been_sent": int(unknown.may_have_been_sent),
            }
        case Release(delay=delay):
            arrow = "release_pending" if result.claimed.came_from is State.PENDING else "release_retry"
            return arrow, {"delay": int(delay * _MICROS)}
        case _:
            assert_never(result.settlement)


def _record(result: Result, who: Claimer) -> Attempt:
    c, outcome = result.claimed, result.outcome
    word, failure_class, stage, detail = _described(result)
    accepted = outcome if isinstance(outcome, Accepted) else None
    charged = not isinstance(result.settlement, Release)
    if isinstance(result.settlement, Unknown):
        charged = result.settlement.charged
    return Attempt(
        token=c.token,
        manifest_id=c.manifest_id,
        ordinal=c.ordinal,
        claimed_by=who.claimed_by,
        gateway=who.gateway,
        account=who.account,
        claimed_at=c.claimed_at,
        stage=stage,
        outcome=word,
        failure_class=failure_class,
        charged=charged,
        message_id=accepted.message_id if accepted else None,
        replayed=accepted.replayed if accepted else False,
        detail=detail,
        batch_id=c.batch_id,
    )


def _described(result: Result) -> tuple[str, FailureClass | None, Stage, str | None]:
    outcome = result.outcome
    if outcome is None:
        return "released", None, Stage.BEFORE_WIRE, None
    return *describe(outcome), None if isinstance(outcome, Accepted) else outcome.detail


def _without_data(result: Result) -> Result:
    """The same result without any text of the provider's: that is what a database may refuse."""
    constant = "the provider's answer could not be stored"
    match result.outcome:
        case None:
            return result
        case Accepted() as accepted:
            settlement = result.settlement
            if isinstance(settlement, Sent):
                settlement = replace(settlement, message_id=None)
            return replace(result, outcome=replace(accepted, message_id=None), settlement=settlement)
        case outcome:
            return replace(result, outcome=replace(outcome, detail=constant))
