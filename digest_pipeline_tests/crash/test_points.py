"""A run is broken at each named point; the next runs recover as production would; the provider judges.

The same cells as `digest lab crash`, some of them: each point, each fault, each engine, each capability.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from digest_pipeline import faults
from digest_pipeline.faults import Point
from digest_pipeline.lab.crash.cells import (
    ASKING,
    Can,
    Cell,
    Engine,
    Harm,
    Kind,
    Sequence,
    all_cells,
    is_quick,
)
from digest_pipeline.lab.crash.jobs import facilities
from digest_pipeline.lab.crash.provider import SandboxProvider
from digest_pipeline.lab.crash.result import run_cell

pytestmark = pytest.mark.crash

CELLS = {cell.name: cell for cell in all_cells()}
KILLS = [cell for cell in CELLS.values() if cell.harm is Harm.KILL and is_quick(cell) and cell.skip is None]
OTHERS = [
    (Harm.CONNECTION_LOST, Point.BEFORE_SETTLE_COMMIT, Engine.POSTGRESQL, Can.LOOK_UP),
    (Harm.DATABASE_RESTART, Point.AFTER_PROVIDER_CALL, Engine.POSTGRESQL, Can.NEITHER),
    (Harm.SETTLE_ERROR, Point.AFTER_PROVIDER_CALL, Engine.POSTGRESQL, Can.LOOK_UP),
    (Harm.SETTLE_ERROR, Point.BEFORE_SETTLE_COMMIT, Engine.SQLITE, Can.REPLAYS),
    (Harm.DISK_FULL, Point.AFTER_PROVIDER_CALL, Engine.SQLITE, Can.REPLAYS),
    (Harm.PROVIDER_KILLED, Point.BEFORE_PROVIDER_CALL, Engine.SQLITE, Can.REPLAYS),
    (Harm.PROVIDER_KILLED, Point.DURING_PROVIDER_CALL, Engine.POSTGRESQL, Can.LOOK_UP),
    (Harm.CLOCK_AHEAD, Point.AFTER_CLAIM_COMMIT, Engine.SQLITE, Can.NEITHER),
    (Harm.CLOCK_BEHIND, Point.BEFORE_PROVIDER_CALL, Engine.POSTGRESQL, Can.REPLAYS),
    (Harm.PAUSE, Point.DURING_LOOK_UP, Engine.SQLITE, Can.LOOK_UP),
    (Harm.PAUSE, Point.BEFORE_PROVIDER_CALL, Engine.POSTGRESQL, Can.NEITHER),
]


def point_cell(harm: Harm, point: Point, engine: Engine, can: Can) -> Cell:
    return CELLS[f"{harm} at {point}, {engine}, {can}"]


def sequence_cell(sequence: Sequence, engine: Engine, can: Can) -> Cell:
    return CELLS[f"{sequence}, {engine}, {can}"]


def must_hold(stage, cell):
    if cell.harm is Harm.DISK_FULL and (reason := facilities(SandboxProvider).no_small_disk):
        pytest.skip(reason)
    result = run_cell(stage, cell)
    assert result.holds, result.why
    return result


@pytest.mark.parametrize("cell", KILLS, ids=lambda cell: cell.name)
def test_killed_at_any_point_everybody_gets_it_once_or_is_held(stage, cell):
    result = must_hold(stage, cell)
    assert result.inflicted.end == "SIGKILL"
    assert result.verdict.unresolved == sum(result.verdict.held.values())
    if cell.can is not Can.NEITHER:
        assert result.verdict.states == {"cleaned": 16, "suppressed": 1}


def test_the_kills_are_at_every_point():
    assert {cell.point for cell in KILLS} == set(Point)
    assert set(ASKING) <= {cell.point for cell in KILLS if cell.engine is Engine.SQLITE}


@pytest.mark.parametrize("which", OTHERS, ids=lambda which: " ".join(which))
def test_every_other_fault_leaves_nobody_with_two_and_nobody_without(stage, which):
    must_hold(stage, point_cell(*which))


@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize(
    "point", [Point.AFTER_CLAIM_COMMIT, Point.BEFORE_PROVIDER_CALL, Point.AFTER_PROVIDER_CALL]
)
def test_a_sender_that_was_stopped_past_its_lease_repeats_nothing_when_it_wakes(stage, point, engine):
    """DUP-25."""
    result = must_hold(stage, point_cell(Harm.PAUSE, point, engine, Can.REPLAYS))
    assert result.inflicted.lost_claims == result.attempts["expired:ambiguous"] == result.late_results > 0
    assert result.verdict.states == {"cleaned": 16, "suppressed": 1}


@pytest.mark.parametrize(
    "cell",
    [
        sequence_cell(Sequence.THROTTLED, Engine.SQLITE, Can.REPLAYS),
        sequence_cell(Sequence.REFUSED, Engine.POSTGRESQL, Can.LOOK_UP),
        sequence_cell(Sequence.WINDOW_CLOSED, Engine.POSTGRESQL, Can.NEITHER),
    ],
    ids=lambda cell: cell.name,
)
def test_a_row_in_doubt_stays_in_doubt_whatever_its_next_try_meets_and_is_never_replayed(stage, cell):
    result = must_hold(stage, cell)
    if cell.can is not Can.LOOK_UP:
        assert result.verdict.states["unknown"] == 4
        assert result.replayed.refused["it is unknown"] == 4


def test_the_documented_exception_is_real_and_the_pipeline_says_so(stage):
    """A look-up can prove that nothing was sent, and not that nothing will be."""
    cell = point_cell(Harm.PAUSE, Point.BEFORE_PROVIDER_CALL, Engine.SQLITE, Can.LOOK_UP)
    assert cell.kind is Kind.DOCUMENTED_EXCEPTION
    assert len(must_hold(stage, cell).verdict.duplicates) == 1


def test_a_point_that_is_not_reached_fails_its_cell(stage):
    never = Cell(Kind.POINT, Engine.SQLITE, Can.NEITHER, Point.DURING_LOOK_UP, Harm.CLOCK_AHEAD)
    result = run_cell(stage, never)
    assert not result.holds
    assert result.why.startswith("not hit")


def test_the_environment_variable_kills_a_process_at_the_point_it_names():
    code = "from digest_pipeline import faults\nfor _ in range(3):\n    faults.reach(faults.Point.AFTER_GATE)"
    faulty = os.environ | {"DIGEST_FAULT": "after_gate:kill:3"}
    assert subprocess.run([sys.executable, "-c", code], env=faulty, check=False).returncode == -signal.SIGKILL
    other = os.environ | {"DIGEST_FAULT": "after_gate:kill:4"}
    assert subprocess.run([sys.executable, "-c", code], env=other, check=False).returncode == 0


def test_every_point_is_reached_from_one_place_and_the_middle_of_a_call_once_in_each_transport():
    package = Path(faults.__file__).parent
    sources = [path for path in package.rglob("*.py") if package / "lab" not in path.parents]
    places: dict[str, list[str]] = {point.name: [] for point in Point}
    for path in sources:
        for name in re.findall(r"reach\(\s*(?:faults\.)?Point\.([A-Z_]+)", path.read_text("utf-8")):
            places[name].append(path.relative_to(package).as_posix())
    in_a_call = places.pop(Point.DURING_PROVIDER_CALL.name)
    assert sorted(in_a_call) == ["gateways/http.py", "gateways/smtp.py"]
    assert {name: len(found) for name, found in places.items()} == dict.fromkeys(places, 1)
