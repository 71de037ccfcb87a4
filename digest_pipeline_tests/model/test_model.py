"""The model agrees with the transition table and with the package's own decisions; rows alone."""

import pytest

from digest_pipeline.lab.model import model
from digest_pipeline.lab.model.cell import Cell, Hand, Question, Reply, canonical
from digest_pipeline.lab.model.decisions import Answer, finding, settled
from digest_pipeline.lab.model.row import Content, Now, Row
from digest_pipeline.lab.model.rules import Can, Guard, Rules
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline.states import CLAIMABLE, TRANSITIONS, State

LOOK_UP = Rules(Can.LOOK_UP)


def test_every_arrow_of_the_table_is_a_function_of_the_model_and_the_other_way_round():
    helpers = {"may_be_sent", "note_absence", "retire", "erase"}
    functions = {
        name
        for name, value in vars(model).items()
        if callable(value)
        and not name.startswith("_")
        and value.__module__ == model.__name__
        and not isinstance(value, type)
    }
    assert functions - helpers == {arrow.name for arrow in TRANSITIONS}


@pytest.mark.parametrize("state", sorted(set(State) - CLAIMABLE))
def test_only_what_waits_is_claimed(state):
    assert model.claim(Row(state=state, token=1), Now(), LOOK_UP) is None


def test_a_claim_under_an_older_token_settles_nothing():
    row = Row(state=State.CLAIMED, token=2)
    for answer in Answer:
        if answer is not Answer.NONE:
            taken = settled(row, 1, answer, State.PENDING, ambiguous=False, last=False, rules=LOOK_UP)
            assert taken.row is None


@pytest.mark.parametrize("answer", sorted(set(Answer) - {Answer.NONE, Answer.ACCEPTED}))
def test_while_ambiguous_everything_but_an_acceptance_leads_to_unknown(answer):
    row = Row(state=State.CLAIMED, token=2, ambiguous=1)
    taken = settled(row, 2, answer, State.UNKNOWN, ambiguous=True, last=True, rules=LOOK_UP)
    assert taken.arrow == "settle_unknown"
    assert taken.row is not None
    assert taken.row.ambiguous == (2 if answer is Answer.AMBIGUOUS else 1)


def test_an_absence_counts_only_when_visible_retained_and_twice():
    def judged(absent, visible=True, retained=True):
        return finding(False, absent, visible=visible, retained=retained, rules=LOOK_UP)

    assert judged(0) is Finding.ABSENT_ONCE
    assert judged(1) is Finding.ASK_LATER
    assert judged(2) is Finding.DISPROVED
    assert judged(2, visible=False) is Finding.ASK_LATER
    assert judged(2, retained=False) is Finding.NO_EVIDENCE


def test_a_replay_needs_a_dead_letter_that_was_never_accepted_and_has_its_content():
    dead = Row(state=State.DEAD, token=3)
    assert model.replay(dead, 3, 2) is not None
    for changed in (
        {"recorded": True},
        {"content": Content.RETIRED},
        {"content": Content.ERASED},
        {"state": State.UNKNOWN, "ambiguous": 3},
        {"token": 4},
    ):
        assert model.replay(dead._replace(**changed), 3, 2) is None


def test_cells_that_differ_in_names_only_are_one():
    hands = (Hand(7, State.PENDING, 0, False), Hand(9, State.RETRY, 0, False, on_wire=True))
    cell = Cell(Row(state=State.CLAIMED, token=9), hands)
    renamed = Cell(
        Row(state=State.CLAIMED, token=3),
        (hands[1]._replace(token=3), hands[0]._replace(token=2)),
    )
    assert canonical(cell, LOOK_UP) == canonical(renamed, LOOK_UP)


def test_an_absence_found_about_an_older_attempt_is_as_good_as_none():
    row = Row(state=State.UNKNOWN, token=5, ambiguous=5, visible=True)
    stale = Question(4, 0, 2, True, True, Reply.ABSENT)
    moot = Question(4, 0, 0, False, True, Reply.ABSENT)
    assert canonical(Cell(row, questions=(stale,)), LOOK_UP) == canonical(
        Cell(row, questions=(moot,)), LOOK_UP
    )
    without = Rules(Can.LOOK_UP, without=frozenset({Guard.TOKEN}))
    assert canonical(Cell(row, questions=(stale,)), without) != canonical(
        Cell(row, questions=(moot,)), without
    )
