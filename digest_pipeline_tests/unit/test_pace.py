"""How many rows a sender claims ahead: never more than it can begin while their permits are good."""

from __future__ import annotations

import asyncio

import pytest

from digest_pipeline.delivery.pace import AHEAD, FIRST_BITE, LEAST_BITE, MOST_AHEAD, Pace

PATIENCE = 0.25


def pace_of(concurrency: int = 50, per_second: float = 100_000) -> Pace:
    return Pace(concurrency, PATIENCE, per_second)


async def claim(pace: Pace, *, seconds: float = 0.01) -> int:
    """Reserve what the pace wants and claim all of it."""
    wanted = await pace.reserve()
    pace.claimed(wanted, wanted, seconds)
    return wanted


def call(pace: Pace, count: int, seconds: float | None, late: float = 0.0) -> None:
    """Let rows that wait take a slot and end."""
    for _ in range(count):
        pace.begun(late)
        pace.ended(seconds)


def with_calls_of(seconds: float, concurrency: int = 50) -> Pace:
    """A pace that has seen a provider answer after so many seconds, and now has nothing open."""
    pace = pace_of(concurrency)
    call(pace, asyncio.run(claim(pace)), seconds)
    return pace


def test_the_first_claim_fills_the_slots_and_nothing_more() -> None:
    assert asyncio.run(claim(pace_of(50))) == 50


def test_a_sender_with_very_many_slots_starts_with_a_small_bite() -> None:
    assert asyncio.run(claim(pace_of(2000))) == FIRST_BITE


def test_what_waits_and_what_is_under_way_is_not_claimed_again() -> None:
    pace = pace_of(50)
    asyncio.run(claim(pace))
    assert pace.room() == 0
    for _ in range(20):
        pace.begun(0.0)
    assert pace.room() == 0
    pace.ended(1.0)
    assert pace.room() == 1


def test_rows_that_were_reserved_and_not_found_are_given_back() -> None:
    pace = pace_of(50)
    wanted = asyncio.run(pace.reserve())
    pace.claimed(wanted, wanted - 7, 0.01)
    assert pace.room() == 7


def test_a_fast_provider_has_work_waiting_beyond_its_slots() -> None:
    assert with_calls_of(0.02).room() > 50


def test_no_more_waits_than_the_rate_lets_through_meanwhile() -> None:
    pace = pace_of(8, per_second=100)
    call(pace, asyncio.run(claim(pace)), 0.02)
    assert 8 < pace.room() <= 8 + 100 * (AHEAD + pace.lead)


def test_a_provider_slower_than_a_permit_lasts_has_no_row_waiting_for_it() -> None:
    pace = with_calls_of(1.0)
    assert pace.room() == 50


@pytest.mark.parametrize("seconds", [0.0001, 0.005, 0.02, 0.1, 0.3, 1.0])
def test_what_waits_is_never_more_than_four_times_the_slots(seconds: float) -> None:
    pace = with_calls_of(seconds)
    for _ in range(100):
        call(pace, asyncio.run(claim(pace)), seconds)
    assert 50 <= pace.room() <= (1 + MOST_AHEAD) * 50


@pytest.mark.parametrize("seconds", [0.005, 0.02, 0.1, 0.2])
def test_what_waits_is_begun_while_its_permit_is_good(seconds: float) -> None:
    pace = with_calls_of(seconds)
    waiting = pace.room() - pace.concurrency
    assert waiting * seconds / pace.concurrency <= AHEAD + pace.lead < PATIENCE


def test_calls_that_were_never_made_say_nothing_about_the_provider() -> None:
    pace = with_calls_of(1.0)
    call(pace, asyncio.run(claim(pace)), None)
    assert pace.room() == 50


def test_rows_that_begin_late_halve_the_next_claims_down_to_a_least_one() -> None:
    pace = pace_of(50)
    for _ in range(10):
        call(pace, asyncio.run(claim(pace)), 0.02, late=2 * PATIENCE)
    assert pace.room() == LEAST_BITE


def test_rows_that_begin_in_time_let_claims_grow_again() -> None:
    pace = pace_of(50)
    for late in [2 * PATIENCE] * 10 + [0.0] * 20:
        call(pace, asyncio.run(claim(pace)), 0.02, late=late)
    assert pace.room() > FIRST_BITE


def test_permits_start_when_recent_claims_say_that_a_claim_will_be_over() -> None:
    pace = pace_of(50)
    assert pace.lead == 0.0
    for _ in range(60):
        call(pace, asyncio.run(claim(pace, seconds=0.08)), 0.02)
    assert pace.lead == pytest.approx(0.08, abs=0.001)


def test_one_quick_claim_is_enough_to_have_permits_start_sooner() -> None:
    pace = pace_of(50)
    for _ in range(60):
        call(pace, asyncio.run(claim(pace, seconds=0.08)), 0.02)
    call(pace, asyncio.run(claim(pace, seconds=0.01)), 0.02)
    assert pace.lead == pytest.approx(0.01)


def test_a_stalled_claim_moves_no_permit_further_than_one_lasts() -> None:
    pace = pace_of(50)
    for _ in range(60):
        call(pace, asyncio.run(claim(pace, seconds=60.0)), 0.02)
    assert pace.lead == PATIENCE


def test_a_lane_waits_until_a_slot_is_free_and_then_claims_for_it() -> None:
    async def story() -> int:
        pace = pace_of(4)
        await claim(pace)
        for _ in range(4):
            pace.begun(0.0)
        lane = asyncio.create_task(pace.reserve())
        await asyncio.sleep(0)
        assert not lane.done()
        pace.ended(1.0)
        return await lane

    assert asyncio.run(story()) == 1


def test_nothing_under_way_is_told_apart_from_a_moment_to_wait() -> None:
    async def story() -> tuple[bool, bool]:
        pace = pace_of(4)
        idle = await pace.wait_a_moment()
        await claim(pace)
        return idle, await pace.wait_a_moment()

    assert asyncio.run(story()) == (False, True)
