"""Everything about one key: its row, who holds what of it, and what the provider has done.

Workers are interchangeable, and so are reconcilers: each has at most one thing in hand, so what is in hand
of each key, sorted, says it all. Fencing tokens are told apart and ordered, and nothing else is done with
them: they are renumbered from 1, which keeps the number of cells finite.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from digest_pipeline.lab.model.decisions import Answer
from digest_pipeline.lab.model.row import Row
from digest_pipeline.lab.model.rules import Guard, Rules
from digest_pipeline.states import State


class Hand(NamedTuple):
    """A claim in a worker's hand: before the wire, on it, or with an answer that is not settled yet.

    ``fence``: the worker may still begin its call. ``barred``: it was claimed although the customer had
    opted out. ``blank``: it was claimed without an address to send to. The rest as it was at the claim.
    """

    token: int
    came_from: State
    account: int
    last: bool
    fence: bool = True
    on_wire: bool = False
    answer: Answer = Answer.NONE
    barred: bool = False
    blank: bool = False

    @property
    def is_before_wire(self) -> bool:
        """Whether the call has not begun."""
        return not self.on_wire and self.answer is Answer.NONE


class Reply(StrEnum):
    """What the provider has said to a question."""

    NOTHING_YET = "nothing yet"
    FOUND = "found"
    ABSENT = "absent"


class Question(NamedTuple):
    """A look-up in a reconciler's hand, with what was true of the row when it was asked."""

    token: int
    account: int
    absent: int
    visible: bool
    retained: bool
    reply: Reply = Reply.NOTHING_YET


class Provider(NamedTuple):
    """What the provider has done with one key.

    ``messages``: how many it took and has not given up. ``accepted``: the accounts under which it took one
    at all; ``known``: those under which it still repeats its answer. ``voided``: it said that a message
    never left. ``orphans``: requests nobody waits for, not judged yet, by account. ``misled``: it has once
    told a look-up of an accepted key that there was none.
    """

    messages: int = 0
    accepted: tuple[int, ...] = ()
    known: tuple[int, ...] = ()
    voided: bool = False
    orphans: tuple[int, ...] = ()
    misled: bool = False


class Cell(NamedTuple):
    """One key and all that is in hand of it. ``backup``: its row as it was in the last one that was made."""

    row: Row
    hands: tuple[Hand, ...] = ()
    questions: tuple[Question, ...] = ()
    provider: Provider = Provider()
    backup: Row | None = None
    restored: bool = False


def canonical(cell: Cell, rules: Rules) -> Cell:
    """Return the one cell that stands for all that differ in names only, or in what can matter no more.

    What is in hand under an older token than the row's will never match it again, since tokens only grow:
    all older tokens are one. Its answer matters only if it is an acceptance, which is applied as the fact
    it is. That argument needs the token guard: a world without it keeps everything apart.
    """
    row = _row(cell, rules)
    hands, questions = cell.hands, cell.questions
    if rules.has(Guard.TOKEN):
        hands = tuple(hand if _is_live(hand, row) else _lost(hand, rules) for hand in hands)
        questions = tuple(_asked(question, row, rules) for question in questions)
    tokens = {row.token, row.ambiguous, *(h.token for h in hands), *(q.token for q in questions)} - {0}
    number = {token: place for place, token in enumerate(sorted(tokens), start=1)} | {0: 0}
    if number[row.token] != row.token or number[row.ambiguous] != row.ambiguous:
        row = row._replace(token=number[row.token], ambiguous=number[row.ambiguous])
    return Cell(
        row,
        tuple(sorted(_hand(hand, number[hand.token]) for hand in hands)),
        tuple(sorted(_question(one, number[one.token]) for one in questions)),
        cell.provider,
        cell.backup,
        cell.restored,
    )


def _row(cell: Cell, rules: Rules) -> Row:
    row = cell.row
    if row.state is State.CLEANED:
        # Only what it once held of the generated rows can still be asked about.
        return Row(State.CLEANED, row.token, content=row.content, proved=row.proved, told=row.told)
    plain: dict[str, Any] = {}
    if row.lease_over and row.state is not State.CLAIMED:
        plain["lease_over"] = False
    if not row.ambiguous or row.state is State.WRITTEN_OFF:
        if row.visible or row.absent:
            plain |= {"visible": False, "absent": 0}
        if row.state is not State.CLAIMED and not (row.fresh and row.retained) and not row.marked:
            plain |= {"fresh": True, "retained": True}
    if row.told and (row.state is not State.SENT or cell.provider.accepted):
        plain["told"] = False
    if row.late and not rules.window:
        plain["late"] = False
    if row.state is State.SENT and row.proved and not row.marked:
        # Nothing but its cleanup is left to happen to it.
        plain |= {"budget": rules.budget, "late": False, "suppressed": False, "account": 0, "recorded": False}
    return row._replace(**plain) if plain else row


def _is_live(hand: Hand, row: Row) -> bool:
    return row.state is State.CLAIMED and hand.token == row.token


def _lost(hand: Hand, rules: Rules) -> Hand:
    """A claim that is the row's no more: all that is left of it is whether its message goes out."""
    if hand.answer is Answer.ACCEPTED:
        return Hand(0, State.PENDING, 0, False, answer=Answer.ACCEPTED)
    can_still_begin = hand.is_before_wire and (hand.fence or hand.blank or not rules.has(Guard.FENCE))
    if not hand.on_wire and not can_still_begin:
        return Hand(0, State.PENDING, 0, False, answer=Answer.RELEASED)
    return hand._replace(token=0, came_from=State.PENDING, last=False)


def _hand(hand: Hand, token: int) -> Hand:
    # A call that has begun has outlived its fence, whatever that said.
    if not hand.is_before_wire and (hand.blank or not hand.fence):
        return hand._replace(token=token, fence=True, blank=False)
    return hand if hand.token == token else hand._replace(token=token)


def _question(question: Question, token: int) -> Question:
    return question if question.token == token else question._replace(token=token)


def _asked(question: Question, row: Row, rules: Rules) -> Question:
    """A question whose absence would change nothing: about an older attempt, or not one that counts."""
    stale = row.state is not State.UNKNOWN or question.token != row.token
    counts = question.visible and question.retained and question.absent != 1
    if question.reply is Reply.FOUND:
        return Question(0, 0, 0, False, True, Reply.FOUND)
    if stale or not (counts or {Guard.VISIBILITY, Guard.TWO_ABSENCES} & rules.without):
        return Question(0, question.account, 0, False, True, question.reply)
    return question
