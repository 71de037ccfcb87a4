"""Chaos: what happens follows from the seed, and the guarantees hold whatever it meets."""

from collections import Counter

import pytest

from digest_pipeline.lab.chaos.play import Trial, play
from digest_pipeline.lab.chaos.schedule import LONG_PAUSE, SHORT_PAUSE, Act, schedule


@pytest.mark.parametrize("workers", [1, 4, 8])
def test_the_same_seed_makes_the_same_schedule_and_another_seed_another(workers):
    assert schedule(1, 60, workers) == schedule(1, 60, workers)
    assert schedule(1, 60, workers) != schedule(2, 60, workers)


@pytest.mark.parametrize("seed", range(20))
def test_two_minutes_with_four_workers_bring_more_than_fifty_kills_and_some_of_all_else(seed):
    actions = schedule(seed, 120, 4)
    counts = Counter(action.act for action in actions)
    assert counts[Act.KILL] >= 50
    assert set(counts) == set(Act)
    assert all(0 <= action.at <= 120 and 0 <= action.worker < 4 for action in actions)
    assert [action.at for action in actions] == sorted(action.at for action in actions)


def test_pauses_last_past_the_lease_only_where_that_is_asked_for():
    pauses = [a.seconds for a in schedule(3, 600, 4) if a.act is Act.PAUSE]
    assert any(LONG_PAUSE[0] <= seconds for seconds in pauses)
    short = [a.seconds for a in schedule(3, 600, 4, long_pauses=False) if a.act is Act.PAUSE]
    assert all(SHORT_PAUSE[0] <= seconds <= SHORT_PAUSE[1] for seconds in short)


@pytest.mark.crash
@pytest.mark.postgresql
@pytest.mark.slow
def test_a_short_chaos_holds():
    data = play(Trial(seconds=12, workers=3, seed=11))
    assert data["holds"], data["violations"]
    assert data["kills"] >= 3
    assert data["done"]["database_restart"] >= 1
    assert data["done"]["provider_kill"] >= 1
    assert data["work_was_left"]
    assert data["states"]["cleaned"] == data["customers"]
