"""A step, and what several actors need to know to take one."""

from __future__ import annotations

from typing import Any, NamedTuple

from digest_pipeline.lab.model import model
from digest_pipeline.lab.model.cell import Cell
from digest_pipeline.lab.model.row import Content, Now, Row
from digest_pipeline.lab.model.rules import Rules
from digest_pipeline.states import State


class Step(NamedTuple):
    """One step: who takes it, its name (an arrow's where it takes one), and the key afterwards.

    ``fault``: it is one of the faults that are counted. ``act``: it is one of the acts that are.
    """

    who: str
    name: str
    cell: Cell
    fault: bool = False
    arrow: bool = False
    act: bool = False


def under_way(cell: Cell) -> bool:
    """Whether a request for this key may still reach the provider, or is being judged there."""
    begun = any(hand.on_wire or (hand.is_before_wire and hand.fence) for hand in cell.hands)
    return begun or bool(cell.provider.orphans)


def with_flags(cell: Cell, **flags: Any) -> Cell:
    """Return a cell whose row has these flags."""
    return cell._replace(row=cell.row._replace(**flags))


def moved(who: str, name: str, cell: Cell, row: Row | None, *, fault: bool = False) -> Step:
    """Return the step that takes the arrow ``name`` to ``row``."""
    assert row is not None
    return Step(who, name, cell._replace(row=row), fault, arrow=True)


def will_not_move(row: Row, now: Now, rules: Rules) -> bool:
    """Whether a row that waits, or is unknown, is held: nothing will be done with it before a person acts."""
    if row.state is State.PENDING:
        return now.window_over and not row.late
    if row.state is State.RETRY:
        return False
    same_account = row.account == now.account
    asks = rules.can.look_up and row.retained
    return not same_account or not (asks or can_be_sent_again(row, now, rules))


def can_be_sent_again(row: Row, now: Now, rules: Rules) -> bool:
    """Whether an unknown row is settled by a re-send rather than by a question."""
    return (
        rules.can.replays
        and row.fresh
        and model.may_be_sent(row, now, rules)
        and not row.suppressed
        and row.content is Content.PRESENT
    )
