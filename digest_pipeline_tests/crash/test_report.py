"""What the harness tells of its results."""

import io
import json

from rich.console import Console

from digest_pipeline.faults import Point
from digest_pipeline.lab.crash import report
from digest_pipeline.lab.crash.cells import Can, Cell, Engine, Harm, Kind, Sequence
from digest_pipeline.lab.crash.inflict import Inflicted
from digest_pipeline.lab.crash.result import Result
from digest_pipeline.lab.crash.verdict import Record, Row, judge

GOOD = Record(["a"], [Row("a", "unknown", held="no_evidence", has_content=True)], [], selected=1)
TWICE = Record(["a"], [Row("a", "sent", proof="accepted", has_content=True)], [("a", "1"), ("a", "2")], 1)


def result(cell: Cell, record: Record = GOOD, *, hit: bool = True, excepted: int = 0) -> Result:
    return Result(cell, Inflicted(hit), judge(record, duplicates_excepted=excepted), sends=3, seconds=1.5)


def point(can: Can, engine: Engine = Engine.SQLITE, kind: Kind = Kind.POINT) -> Cell:
    return Cell(kind, engine, can, Point.AFTER_GATE, Harm.KILL)


SKIPPED = [
    Cell(Kind.POINT, Engine.SQLITE, Can.NEITHER, Point.AFTER_GATE, Harm.CONNECTION_LOST, skip="no server")
]


def data_of(*results: Result):
    return json.loads(json.dumps(report.as_data(results, SKIPPED, 60.0, full=True)))


def table_of(data) -> str:
    shown = io.StringIO()
    Console(file=shown, width=160).print(report.table(data))
    return shown.getvalue()


def test_one_line_for_a_point_and_a_group_of_faults_with_a_column_for_each_capability():
    data = data_of(
        result(point(Can.REPLAYS)),
        result(point(Can.REPLAYS, Engine.POSTGRESQL)),
        result(point(Can.NEITHER)),
        result(Cell(Kind.SEQUENCE, Engine.SQLITE, Can.LOOK_UP, sequence=Sequence.REFUSED)),
    )
    line, sequence = (row for row in table_of(data).splitlines() if "ok 1" in row)
    assert [cell.strip() for cell in line.strip("│ ").split("│")] == [
        "after gate",
        "kill",
        "ok 2, 2 held",
        "-",
        "ok 1, 1 held",
    ]
    assert "ambiguous, 422" in sequence
    assert data["holds"]


def test_a_broken_cell_is_shown_listed_and_counted():
    bad = result(point(Can.REPLAYS), TWICE)
    data = data_of(bad, result(point(Can.NEITHER)))
    assert not data["holds"]
    assert "BROKEN: duplicate 1" in table_of(data)
    lines = report.closing_lines(data)
    assert lines[0].startswith("BROKEN kill at after gate, sqlite, replays: duplicate: a")
    assert any(line == "skipped 1: no server" for line in lines)
    assert data["totals"]["duplicates"] == 1
    assert data["totals"]["cells_broken"] == 1


def test_a_fault_that_did_not_happen_is_a_failure():
    data = data_of(result(point(Can.REPLAYS), hit=False))
    assert not data["holds"]
    assert data["cells"][0]["why"].startswith("not hit")


def test_nothing_made_proves_nothing():
    assert not data_of()["holds"]


def test_duplicates_of_the_documented_exception_are_counted_apart():
    admitted = Record(["a"], TWICE.rows, TWICE.acceptances, 1, admitted=["a"])
    data = data_of(result(point(Can.LOOK_UP, kind=Kind.DOCUMENTED_EXCEPTION), admitted, excepted=1))
    assert data["holds"]
    assert data["totals"]["duplicates"] == 0
    assert data["totals"]["duplicates_in_documented_exceptions"] == 1
    assert "documented exception" in table_of(data)


def test_the_markdown_has_the_sums_the_grid_and_the_reasons():
    text = report.to_markdown(data_of(result(point(Can.REPLAYS)), result(point(Can.NEITHER))))
    assert "| 0 | 0 | 0 | 0 | 0 | 2 |" in text
    assert "| after gate | kill | ok 1, 1 held | - | ok 1, 1 held |" in text
    assert "- 1 cells: no server" in text
