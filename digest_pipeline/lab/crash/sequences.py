"""The named sequences: an ambiguous send that fails again, outlives its key, and is then replayed by a person."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import update

from digest_pipeline.lab.crash.cells import Can, Sequence
from digest_pipeline.lab.crash.inflict import KEY_LIFETIME, Inflicted
from digest_pipeline.lab.crash.period import DIGEST, LABEL, key_of
from digest_pipeline.lab.crash.provider import Trouble
from digest_pipeline.lab.crash.record import read_rows
from digest_pipeline.lab.crash.stage import Case
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.schema import manifest
from digest_pipeline.operations.decisions import Decision, Order
from digest_pipeline.operations.replay import replay
from digest_pipeline.states import State

ACCEPTED = [key_of(3), key_of(11)]
"""Accepted, with the answer lost."""

NOT_ACCEPTED = [key_of(5), key_of(13)]
"""Lost before they were accepted."""

AMBIGUOUS = [*ACCEPTED, *NOT_ACCEPTED]

NEXT_TRY = {
    Sequence.THROTTLED: Trouble.THROTTLED,
    Sequence.UNAVAILABLE: Trouble.UNAVAILABLE,
    Sequence.REFUSED: Trouble.REFUSED,
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a person's order did. ``touched``: ambiguous rows that it moved, which it never may."""

    refused: dict[str, int]
    touched: tuple[str, ...]


def lead(case: Case) -> tuple[Inflicted, Replayed]:
    """Lead a period through its cell's sequence, up to and including the replay."""
    provider, sequence = case.stage.provider, case.cell.sequence
    assert sequence is not None
    provider.script(Trouble.LOST_ANSWER, ACCEPTED)
    provider.script(Trouble.LOST_REQUEST, NOT_ACCEPTED)
    case.run()
    first = provider.requests(AMBIGUOUS)
    doubtful = set(_unknown(case)) == set(AMBIGUOUS)
    if sequence in NEXT_TRY:
        provider.script(NEXT_TRY[sequence], AMBIGUOUS)
    else:
        _close_window(case)
    case.pass_time()
    case.run()
    tried_again = provider.requests(AMBIGUOUS) > first
    case.pass_time(KEY_LIFETIME)
    provider.forget_keys()
    case.run()
    replayed = _replay_all(case)
    # With the key, the next try is a send, unless the window has closed; without it, never a send.
    expected = case.cell.can is Can.REPLAYS and sequence is not Sequence.WINDOW_CLOSED
    note = f"unknown after the first run: {len(AMBIGUOUS)}" if doubtful else "the doubt was not made"
    return Inflicted(doubtful and tried_again == expected, note=note), replayed


def _unknown(case: Case) -> list[str]:
    with case.ledger() as ledger, ledger.read() as conn:
        rows = read_rows(conn, reads.manifest_ids(conn, DIGEST, LABEL))
    return [row.key for row in rows if row.state == State.UNKNOWN]


def _close_window(case: Case) -> None:
    with case.ledger() as ledger, ledger.write() as conn:
        conn.execute(update(manifest).values(window_opens_at=0, window_closes_at=1))


def _replay_all(case: Case) -> Replayed:
    """Order a replay of every key of the period; each that is in doubt must be refused by name."""
    before = set(_unknown(case))
    with case.ledger() as ledger:
        order = Order(
            case.digest,
            case.digest.period(LABEL),
            tuple(key_of(n) for n in range(1, len(case.expected) + 1)),
            "lab",
            "everything again",
        )
        decision: Decision = replay(ledger, order, apply=True)
    return Replayed(decision.reasons, tuple(sorted(before - set(decision.refused))))
