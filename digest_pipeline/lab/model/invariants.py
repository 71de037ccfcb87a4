"""What must hold in every world, and of every step. Each is about one key, whatever the others do."""

from __future__ import annotations

from digest_pipeline.lab.model.cell import Cell
from digest_pipeline.lab.model.row import Content, Now
from digest_pipeline.lab.model.rules import Rules
from digest_pipeline.lab.model.steps import Step, will_not_move
from digest_pipeline.states import CLAIMABLE, REACHED, TRANSITIONS, State

ARROWS = {arrow.name: arrow for arrow in TRANSITIONS}
ONCE = "no key is accepted twice as a new message"
CLEAR = frozenset({State.PENDING, State.RETRY, State.FAILED, State.DEAD, State.SUPPRESSED})
"""States in which no attempt may have been accepted."""


def broken(cell: Cell) -> list[str]:
    """Return what does not hold of a key, in words; nothing when all does."""
    return [words for words, holds in _claims(cell).items() if not holds]


def duplicates(cell: Cell) -> list[str]:
    """Return the one thing that a customer would notice of what does not hold."""
    return [] if cell.provider.messages <= 1 else [ONCE]


def _claims(cell: Cell) -> dict[str, bool]:
    row, provider = cell.row, cell.provider
    live = [h for h in cell.hands if row.state is State.CLAIMED and h.token == row.token]
    gone = row.content in (Content.CLEANED, Content.RETIRED)
    return {
        ONCE: provider.messages <= 1,
        "what is called sent was accepted, or a person said so": (
            row.state not in REACHED or bool(provider.accepted) or row.told
        ),
        "what was accepted is never called unsent": (
            row.state not in CLEAR or row.marked or not provider.messages
        ),
        "ambiguity is sticky: only claimed, unknown and written off carry it": (
            not row.ambiguous or row.state in (State.CLAIMED, State.UNKNOWN, State.WRITTEN_OFF)
        ),
        "what is unknown is ambiguous": row.state is not State.UNKNOWN or row.ambiguous > 0,
        "generated rows go only with cleanup, erasure or retention": (
            row.content is not Content.CLEANED or row.state is State.CLEANED
        ),
        "nothing is cleaned without the proof that is asked for": row.state is not State.CLEANED
        or row.proved,
        "what never left still has its generated rows": not (
            provider.voided and gone and row.state is State.CLEANED and not row.proved
        ),
        "nothing goes to somebody who had opted out before it was claimed": not any(
            hand.barred and hand.on_wire for hand in cell.hands
        ),
        "a claim is in one hand only": len(live) <= 1,
    }


def wrong_step(before: Cell, step: Step) -> list[str]:
    """Return what does not hold of a step, before anything is renumbered."""
    was, now = before.row, step.cell.row
    found = []
    if now.token < was.token:
        found.append("tokens only grow")
    if step.name in ("claim", "reclaim_unknown") and step.arrow and now.token <= was.token:
        found.append("every claim has a greater token")
    if step.arrow and not _is_in_the_table(was.state, step.name, now.state):
        found.append(f"the table has no arrow {step.name} from {was.state} to {now.state}")
    if not step.arrow and was.state is not now.state and step.name != "restore a backup":
        found.append(f"{step.name} changes the state without an arrow")
    return found


def _is_in_the_table(source: State, name: str, target: State) -> bool:
    arrow = ARROWS.get(name)
    return arrow is not None and source in arrow.sources and target is arrow.target


def is_settled(cell: Cell, now: Now, rules: Rules) -> bool:
    """Whether nothing is left to do: final, or held for a person, with nothing in anybody's hand."""
    if cell.hands or cell.questions or cell.row.marked:
        return False
    if cell.row.state in CLAIMABLE or cell.row.state is State.UNKNOWN:
        return will_not_move(cell.row, now, rules)
    return cell.row.state is not State.CLAIMED
