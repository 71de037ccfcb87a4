"""Who acts, and the steps each may take with one key at this moment.

``steps`` yields every one of them; what they need (a free worker or reconciler, a fault that is left) shows
in the cell they lead to and in ``fault``. Decisions of the environment are bound by what the real code
and the provider's contract guarantee, and by nothing else:

- a worker begins no call after its fence, and a call that has begun is judged before its time-out is over,
  so an accepted key is visible, or forgotten, only once no request for it can be under way any more;
- a process may be paused anywhere and for any time: it goes on with what it has in hand;
- a key is forgotten, or dropped from look-ups, no sooner than its declared lifetime, counted from a first
  claim that the ledger knows of, and not between the two words of one question;
- one look-up of a key may be wrong about it, as a fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from digest_pipeline.lab.model import model
from digest_pipeline.lab.model.cell import Cell, Hand, Provider
from digest_pipeline.lab.model.decisions import Answer, settled
from digest_pipeline.lab.model.others import backups, people, reconcilers, times
from digest_pipeline.lab.model.row import Content, Now
from digest_pipeline.lab.model.rules import Guard, Rules
from digest_pipeline.lab.model.steps import Step, moved, with_flags
from digest_pipeline.states import CLAIMABLE, State


def steps(cell: Cell, now: Now, rules: Rules) -> Iterator[Step]:
    """Yield every step that anybody may take with this key."""
    yield from _claims(cell, now, rules)
    for place in range(len(cell.hands)):
        if place == 0 or cell.hands[place] != cell.hands[place - 1]:
            yield from _worker(cell, place, rules)
    yield from _provider(cell, rules)
    yield from _any_pass(cell, now, rules)
    yield from times(cell, rules)
    if rules.can.look_up:
        yield from reconcilers(cell, now, rules)
    if rules.restore and cell.backup is None and not cell.restored:
        yield from backups(cell)
    if rules.acts != 0:
        yield from (step._replace(act=True) for step in people(cell, now, rules))


def _claims(cell: Cell, now: Now, rules: Rules) -> Iterator[Step]:
    row = cell.row
    if row.suppressed and row.state in CLAIMABLE and model.may_be_sent(row, now, rules):
        yield moved("worker", "suppress", cell, model.suppress(row))
    for name, taken in (
        ("claim", model.claim(row, now, rules)),
        ("reclaim_unknown", model.reclaim_unknown(row, now, rules)),
    ):
        if taken is not None:
            blank = row.content is not Content.PRESENT
            last, barred = row.budget <= 1, row.suppressed
            hand = Hand(taken.token, row.state, taken.account, last, barred=barred, blank=blank)
            unmarked = not rules.has(Guard.CLAIM_BEFORE_CALL)
            after = cell._replace(row=row if unmarked else taken, hands=(*cell.hands, hand))
            yield Step("worker", name, after, arrow=not unmarked)


def _worker(cell: Cell, place: int, rules: Rules) -> Iterator[Step]:
    hand = cell.hands[place]
    rest = cell.hands[:place] + cell.hands[place + 1 :]
    if hand.is_before_wire:
        if hand.blank:
            yield _holding("worker", "refuse a blank", cell, rest, hand._replace(answer=Answer.REFUSED))
        elif hand.fence or not rules.has(Guard.FENCE):
            yield _holding("worker", "go on the wire", cell, rest, hand._replace(on_wire=True))
        yield _holding("worker", "give up before the wire", cell, rest, hand._replace(answer=Answer.RELEASED))
        yield Step("worker", "crash before the wire", cell._replace(hands=rest), fault=True)
    elif hand.on_wire:
        answered = hand._replace(on_wire=False, answer=Answer.ACCEPTED)
        taken = cell._replace(provider=_accept(cell.provider, hand.account, rules))
        yield _holding("provider", "accept", taken, rest, answered)
        for answer in (Answer.REFUSED, Answer.NOT_SENT, Answer.THROTTLED):
            yield _holding("provider", f"answer {answer}", cell, rest, answered._replace(answer=answer), True)
        left = cell._replace(provider=_orphan(cell.provider, hand.account))
        lost = answered._replace(answer=Answer.AMBIGUOUS)
        yield _holding("worker", "lose the reply", left, rest, lost, True)
        yield Step("worker", "crash on the wire", left._replace(hands=rest), fault=True)
    else:
        yield _settle(cell, hand, rest, rules)
        yield Step("worker", "crash before it settles", cell._replace(hands=rest), fault=True)


def _settle(cell: Cell, hand: Hand, rest: tuple[Hand, ...], rules: Rules) -> Step:
    ambiguous = hand.came_from is State.UNKNOWN
    arrow, row = settled(
        cell.row, hand.token, hand.answer, hand.came_from, ambiguous=ambiguous, last=hand.last, rules=rules
    )
    if row is not None:
        return Step("worker", arrow, cell._replace(row=row, hands=rest), arrow=True)
    # The claim was lost: an acceptance is a fact and is applied, anything else is only recorded.
    recorded = cell.row._replace(recorded=cell.row.recorded or hand.answer is Answer.ACCEPTED)
    late = model.apply_acceptance(recorded) if hand.answer is Answer.ACCEPTED else None
    if late is None:
        return Step("worker", "record a late result", cell._replace(row=recorded, hands=rest))
    return Step("worker", "apply_acceptance", cell._replace(row=late, hands=rest), arrow=True)


def _provider(cell: Cell, rules: Rules) -> Iterator[Step]:
    provider = cell.provider
    for place, account in enumerate(provider.orphans):
        rest = provider._replace(orphans=provider.orphans[:place] + provider.orphans[place + 1 :])
        yield Step("provider", "accept, too late", cell._replace(provider=_accept(rest, account, rules)))
        yield Step("provider", "drop a request", cell._replace(provider=rest))
    if provider.accepted:
        late = model.apply_acceptance(cell.row)
        if late is not None:
            yield moved("provider event", "apply_acceptance", cell, late)
    if cell.row.state is State.SENT and provider.messages and not cell.row.proved:
        yield Step("provider event", "delivered", cell._replace(row=cell.row._replace(proved=True)))
    if provider.messages and not provider.voided and not cell.row.proved:
        voided = provider._replace(messages=provider.messages - 1, voided=True)
        failed = model.fail_sent(cell.row, cell.row.token)
        if failed is not None:
            yield moved("provider event", "fail_sent", cell._replace(provider=voided), failed, fault=True)
        elif cell.row.state is State.CLEANED:
            yield Step("provider event", "never left", cell._replace(provider=voided), fault=True)


def _any_pass(cell: Cell, now: Now, rules: Rules) -> Iterator[Step]:
    for name, row in (
        ("expire_lease", model.expire_lease(cell.row, rules)),
        ("doubt", model.doubt(cell.row)),
        ("close_window", model.close_window(cell.row, now)),
        ("clean", model.clean(cell.row, rules)),
    ):
        if row is not None:
            yield moved("cleaner" if name == "clean" else "a pass", name, cell, row)
    if cell.row.marked and model.doubt(cell.row) is None:
        yield Step("a pass", "nothing to doubt", with_flags(cell, marked=False))


def _accept(provider: Provider, account: int, rules: Rules) -> Provider:
    """Take a request: as a new message, unless this account's key is known and is answered again."""
    if account in provider.known:
        return provider
    return provider._replace(
        messages=provider.messages + 1,
        accepted=_and(provider.accepted, account),
        known=_and(provider.known, account) if rules.can.replays else (),
    )


def _and(accounts: tuple[int, ...], account: int) -> tuple[int, ...]:
    return tuple(sorted({*accounts, account}))


def _orphan(provider: Provider, account: int) -> Provider:
    return provider._replace(orphans=tuple(sorted((*provider.orphans, account))))


def _holding(
    who: str, name: str, cell: Cell, rest: tuple[Hand, ...], hand: Hand, fault: bool = False
) -> Step:
    return Step(who, name, cell._replace(hands=(*rest, hand)), fault)
