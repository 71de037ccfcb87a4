from datetime import timedelta
from types import SimpleNamespace

import pytest

from digest_pipeline.gateways.base import Capabilities
from digest_pipeline.outcomes import Absent, Found, LookUpFailed
from digest_pipeline.reconciliation.agreement import Agreement, judge
from digest_pipeline.states import REACHED, State

MICROS = 1_000_000
CAN = Capabilities(
    look_up=True, visibility_delay=timedelta(seconds=10), look_up_retention=timedelta(seconds=100)
)
AT = 50 * MICROS


def row(state, message_id=None, first_at=0, last_at=0):
    return SimpleNamespace(state=state, message_id=message_id, first_at=first_at, last_at=last_at)


@pytest.mark.parametrize("state", list(State))
def test_a_found_message_agrees_only_with_a_send_or_one_that_is_on_its_way(state):
    agrees = state in REACHED or state is State.CLAIMED
    expected = Agreement.CONFIRMED if agrees else Agreement.UNEXPECTED
    assert judge(row(state), Found("m1"), AT, CAN) is expected


def test_a_message_that_was_accepted_and_never_left_is_rightly_listed():
    assert judge(row(State.FAILED, "m1"), Found("m1"), AT, CAN) is Agreement.CONFIRMED


@pytest.mark.parametrize("state", list(State))
def test_an_absence_contradicts_only_what_was_sent(state):
    expected = Agreement.MISSING if state in REACHED else Agreement.CONFIRMED
    assert judge(row(state), Absent(), AT, CAN) is expected


@pytest.mark.parametrize(
    ("asked_at", "expected"),
    [
        (10 * MICROS - 1, Agreement.OUTSIDE_WINDOW),
        (10 * MICROS, Agreement.MISSING),
        (100 * MICROS, Agreement.MISSING),
        (100 * MICROS + 1, Agreement.OUTSIDE_WINDOW),
    ],
)
def test_an_absence_counts_from_the_visibility_delay_to_the_retention(asked_at, expected):
    assert judge(row(State.SENT), Absent(), asked_at, CAN) is expected


def test_the_latest_state_decides_and_no_answer_is_no_verdict():
    assert judge(row(State.UNKNOWN), Found("m1"), AT, CAN, row(State.SENT)) is Agreement.CONFIRMED
    assert judge(row(State.SENT), LookUpFailed("down"), AT, CAN) is Agreement.UNANSWERED
