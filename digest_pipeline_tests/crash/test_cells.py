"""Which cells there are: pure data."""

from itertools import product

import pytest

from digest_pipeline.faults import Point
from digest_pipeline.lab.crash.cells import (
    ASKING,
    GRID,
    Can,
    Engine,
    Facilities,
    Harm,
    Kind,
    Sequence,
    all_cells,
    chosen,
)

CELLS = all_cells()


def test_every_point_fault_engine_and_capability_is_there_once():
    found = [(c.point, c.harm, c.engine, c.can) for c in CELLS if c.sequence is None and c.harm in GRID]
    assert sorted(found) == sorted(product(Point, GRID, Engine, Can))


def test_every_sequence_is_there_for_each_engine_and_capability():
    found = [(c.sequence, c.engine, c.can) for c in CELLS if c.sequence is not None]
    assert sorted(found) == sorted(product(Sequence, Engine, Can))


def test_names_are_unique():
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_whatever_is_skipped_has_a_reason_and_the_rest_of_each_fault_is_made():
    assert all(cell.skip is None or len(cell.skip) > 20 for cell in CELLS)
    made = {(cell.harm, cell.point) for cell in CELLS if cell.skip is None}
    without_writes = {(harm, Point.AFTER_CLEANUP_COMMIT) for harm in (Harm.SETTLE_ERROR, Harm.DISK_FULL)}
    assert {(harm, point) for harm, point in product(GRID, Point)} - made == without_writes


def test_questions_are_broken_only_where_questions_are_asked():
    assert {cell.can for cell in CELLS if cell.point in ASKING and cell.skip is None} == {Can.LOOK_UP}


def test_the_documented_exceptions_are_the_two_that_the_guarantee_names():
    found = {(c.point, c.harm, c.can) for c in CELLS if c.kind is Kind.DOCUMENTED_EXCEPTION}
    assert found == {
        (Point.BEFORE_PROVIDER_CALL, Harm.PAUSE, Can.LOOK_UP),
        (Point.BEFORE_PROVIDER_CALL, Harm.PAUSE_PAST_KEY, Can.REPLAYS),
    }


@pytest.mark.parametrize(
    ("facilities", "harm"),
    [
        (Facilities(no_small_disk="no small file system here"), Harm.DISK_FULL),
        (Facilities(no_server_restart="the server is not ours to restart"), Harm.DATABASE_RESTART),
    ],
)
def test_what_this_machine_cannot_do_is_skipped_for_its_reason(facilities, harm):
    cells = [cell for cell in all_cells(facilities) if cell.harm is harm]
    assert all(cell.skip is not None for cell in cells)
    reason = facilities.no_small_disk or facilities.no_server_restart
    assert any(cell.skip == reason for cell in cells)


def test_what_a_provider_cannot_play_is_skipped():
    only = Facilities(cans=frozenset({Can.REPLAYS}), sequences=frozenset(), forgets_keys=False)
    made = [cell for cell in all_cells(only) if cell.skip is None]
    assert {cell.can for cell in made} == {Can.REPLAYS}
    assert {cell.kind for cell in made} == {Kind.POINT}


def test_the_quick_selection_shows_every_point_fault_engine_capability_and_sequence():
    quick = [cell for cell in chosen(CELLS, full=False) if cell.skip is None]
    assert 35 <= len(quick) <= 50
    assert {cell.point for cell in quick if cell.point} == set(Point)
    assert {cell.harm for cell in quick if cell.harm} == set(Harm)
    assert {cell.sequence for cell in quick if cell.sequence} == set(Sequence)
    assert {(cell.engine, cell.can) for cell in quick} == set(product(Engine, Can))


def test_a_choice_of_point_or_fault_is_made_in_full():
    asked = chosen(CELLS, full=False, points=["after_gate"], engines=["sqlite"])
    assert len(asked) == len(GRID) * len(Can)
    assert len(chosen(CELLS, full=False, harms=["kill"], cans=["neither"])) == len(Point) * len(Engine)
