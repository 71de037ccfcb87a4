"""Everybody but workers and the provider: time, reconcilers, people."""

from __future__ import annotations

from collections.abc import Iterator

from digest_pipeline.lab.model import model
from digest_pipeline.lab.model.cell import Cell, Question, Reply
from digest_pipeline.lab.model.decisions import finding
from digest_pipeline.lab.model.row import Now, Row
from digest_pipeline.lab.model.rules import Guard, Rules
from digest_pipeline.lab.model.steps import Step, can_be_sent_again, moved, under_way, with_flags
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline.states import CLAIMABLE, State


def times(cell: Cell, rules: Rules) -> Iterator[Step]:
    """Yield what time may do to a key: never sooner than the rules on top of ``actors`` say."""
    row = cell.row
    if row.state is State.CLAIMED and not row.lease_over:
        hands = tuple(h._replace(fence=False) if h.token == row.token else h for h in cell.hands)
        yield Step("time", "the lease is over", cell._replace(row=row._replace(lease_over=True), hands=hands))
    for place, hand in enumerate(cell.hands):
        held = row.state is State.CLAIMED and hand.token == row.token
        if hand.is_before_wire and hand.fence and not held:
            past = (*cell.hands[:place], hand._replace(fence=False), *cell.hands[place + 1 :])
            yield Step("time", "a lost claim's fence is over", cell._replace(hands=past))
    in_doubt = row.marked or row.state is State.UNKNOWN or (row.state is State.CLAIMED and row.lease_over)
    if rules.can.replays and in_doubt and row.fresh:
        yield Step("time", "the key is too old to be sent again", with_flags(cell, fresh=False))
    if rules.can.look_up and in_doubt and row.retained and not cell.questions:
        yield Step("time", "the key is too old to be asked about", with_flags(cell, retained=False))
    if rules.can.look_up and row.state is State.UNKNOWN and not row.visible and not under_way(cell):
        yield Step("time", "an accepted key would show by now", with_flags(cell, visible=True))
    if row.absent == 1 and row.state is State.UNKNOWN:
        yield Step("time", "a second absence would count", with_flags(cell, absent=2))
    if row.late:
        yield Step("time", "the permission to be late is over", with_flags(cell, late=False))
    young = row.fresh and (row.marked or row.state in (State.CLAIMED, State.UNKNOWN))
    if cell.provider.known and not young and not under_way(cell):
        forgotten = cell.provider._replace(known=())
        yield Step("time", "the provider forgets the key", cell._replace(provider=forgotten))


def reconcilers(cell: Cell, now: Now, rules: Rules) -> Iterator[Step]:
    """Yield the questions, their answers, and what is made of them, however late."""
    row = cell.row
    same = row.account == now.account or not rules.has(Guard.ACCOUNT)
    if row.state is State.UNKNOWN and same and not can_be_sent_again(row, now, rules):
        question = Question(row.token, now.account, row.absent, row.visible, row.retained)
        yield Step("reconciler", "ask", cell._replace(questions=(*cell.questions, question)))
    for place, question in enumerate(cell.questions):
        rest = cell.questions[:place] + cell.questions[place + 1 :]
        if place and question == cell.questions[place - 1]:
            continue
        if question.reply is Reply.NOTHING_YET:
            yield from _answers(cell, question, rest)
        else:
            yield _evidence(cell._replace(questions=rest), question, rules)
        yield Step("reconciler", "crash", cell._replace(questions=rest), fault=True)


def _answers(cell: Cell, question: Question, rest: tuple[Question, ...]) -> Iterator[Step]:
    provider = cell.provider
    absent = cell._replace(questions=(*rest, question._replace(reply=Reply.ABSENT)))
    listed = question.account in provider.accepted
    if listed:
        found = question._replace(reply=Reply.FOUND)
        yield Step("provider", "knows the key", cell._replace(questions=(*rest, found)))
    hidden = not question.visible or not cell.row.retained
    if not listed or hidden:
        yield Step("provider", "lists no such key", absent)
    elif not provider.misled:
        misled = absent._replace(provider=provider._replace(misled=True))
        yield Step("provider", "is wrong about the key", misled, fault=True)


def _evidence(cell: Cell, question: Question, rules: Rules) -> Step:
    found = finding(
        question.reply is Reply.FOUND,
        question.absent,
        visible=question.visible,
        retained=question.retained,
        rules=rules,
    )
    row: Row | None = None
    if found is Finding.SENT:
        row = model.apply_acceptance(cell.row)
        if row is not None:
            return moved("reconciler", "apply_acceptance", cell, row)
    elif found is Finding.DISPROVED:
        row = model.disprove_unknown(cell.row, question.token, rules)
        if row is not None:
            return moved("reconciler", "disprove_unknown", cell, row)
    elif found is Finding.ABSENT_ONCE:
        row = model.note_absence(cell.row, question.token)
    return Step("reconciler", f"note: {found}", cell if row is None else cell._replace(row=row))


def people(cell: Cell, now: Now, rules: Rules) -> Iterator[Step]:
    """Yield what an operator, a customer and the retention rule may do."""
    row = cell.row
    if row.state is State.UNKNOWN:
        yield moved("operator", "resolve_sent", cell, model.resolve_sent(row, row.token))
        yield moved("operator", "write_off", cell, model.write_off(row, row.token))
        if (not cell.provider.accepted and not under_way(cell)) or not rules.has(Guard.TRUTH):
            yield moved("operator", "disprove_unknown", cell, model.disprove_unknown(row, row.token, rules))
    for name, after in (
        ("replay", model.replay(row, row.token, rules.budget)),
        ("close_manifest", model.close_manifest(row, now)),
    ):
        if after is not None:
            yield moved("operator", name, cell, after)
    retired = model.retire(row)
    if retired is not None:
        yield Step("cleaner", "retention", cell._replace(row=retired))
    erased = model.erase(row)
    if erased is not None and row.state is not State.CLEANED:
        gone = model.suppress(erased)
        if gone is None:
            yield Step("operator", "erase", cell._replace(row=erased))
        else:
            yield moved("operator", "suppress", cell, gone)
    if not row.suppressed and row.state is not State.CLEANED:
        yield Step("customer", "opt out", with_flags(cell, suppressed=True))
    if rules.restore and not cell.restored:
        yield Step("operator", "restore a backup", restored(cell, rules))


def backups(cell: Cell) -> Iterator[Step]:
    """Back up a row that waits or is unknown: the states in which a restored one is doubted."""
    row = cell.row
    if row.state in CLAIMABLE or row.state is State.UNKNOWN:
        kept = row._replace(token=0, ambiguous=min(row.ambiguous, 1), visible=False, absent=0)
        yield Step("time", "a backup is made", cell._replace(backup=kept))


def restored(cell: Cell, rules: Rules) -> Cell:
    """The row as it was backed up, in doubt, and with tokens that go on past all that were ever given out."""
    backup = cell.backup or Row(budget=rules.budget)
    # What was forgotten since it was first ambiguous, or since the backup, is too old to be sent again.
    fresh = cell.provider.accepted == cell.provider.known or not rules.can.replays
    token, suppressed = cell.row.token, cell.row.suppressed
    row = backup._replace(token=token, fresh=backup.fresh and fresh, suppressed=suppressed, marked=True)
    return cell._replace(row=row, backup=None, restored=True)
