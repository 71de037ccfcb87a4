"""A sender dies with a batch in hand: what one key covers is repeated whole, and nobody gets two or none."""

from collections.abc import Iterator

import pytest

from digest_pipeline.faults import Point
from digest_pipeline.lab.crash import inflict
from digest_pipeline.lab.crash.cells import Can, Cell, Engine, Harm, Kind
from digest_pipeline.lab.crash.result import run_cell
from digest_pipeline.lab.crash.stage import Stage
from digest_pipeline_tests.harness.batching import BatchStage, PostmarkProvider, ResendProvider

pytestmark = pytest.mark.crash

MADE = (
    Point.AFTER_CLAIM_COMMIT,
    Point.BEFORE_PROVIDER_CALL,  # the batch is committed, and nothing has left
    Point.DURING_PROVIDER_CALL,
    Point.AFTER_PROVIDER_CALL,
    Point.BEFORE_SETTLE_COMMIT,
)


@pytest.fixture(scope="module")
def resend(tmp_path_factory) -> Iterator[Stage]:
    with BatchStage(tmp_path_factory.mktemp("resend"), ResendProvider) as stage:
        yield stage


@pytest.fixture(scope="module")
def postmark(tmp_path_factory) -> Iterator[Stage]:
    with BatchStage(tmp_path_factory.mktemp("postmark"), PostmarkProvider) as stage:
        yield stage


@pytest.fixture(autouse=True)
def in_the_middle(monkeypatch):
    """The fourth call of five, where a message alone would be the eighth of seventeen."""
    for point in MADE:
        many = point in (Point.BEFORE_PROVIDER_CALL, Point.DURING_PROVIDER_CALL, Point.AFTER_PROVIDER_CALL)
        monkeypatch.setitem(inflict.HITS, point, 4 if many else 1)


def must_hold(stage, can, harm, point, engine):
    result = run_cell(stage, Cell(Kind.POINT, engine, can, point, harm))
    assert result.holds, result.why
    assert result.verdict is not None
    assert result.verdict.states == {"cleaned": 16, "suppressed": 1}


@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize("point", MADE)
def test_killed_with_a_batch_under_one_key_everybody_gets_it_once(resend, point, engine):
    must_hold(resend, Can.REPLAYS, Harm.KILL, point, engine)


@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize("point", [Point.BEFORE_PROVIDER_CALL, Point.AFTER_PROVIDER_CALL])
def test_killed_with_a_batch_that_can_be_asked_about_everybody_gets_it_once(postmark, point, engine):
    must_hold(postmark, Can.LOOK_UP, Harm.KILL, point, engine)


@pytest.mark.parametrize("engine", Engine)
def test_a_sender_stopped_with_a_batch_past_its_lease_repeats_nothing_when_it_wakes(resend, engine):
    must_hold(resend, Can.REPLAYS, Harm.PAUSE, Point.BEFORE_PROVIDER_CALL, engine)


@pytest.mark.parametrize("engine", Engine)
def test_a_provider_that_dies_with_a_batch_in_hand_sends_it_once(resend, engine):
    must_hold(resend, Can.REPLAYS, Harm.PROVIDER_KILLED, Point.DURING_PROVIDER_CALL, engine)
