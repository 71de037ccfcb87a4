import csv
import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.reconciliation.reporting.csv_file import as_instants, neutralise, replacing
from digest_pipeline.reconciliation.reporting.timeline import MOST_STEPS, width_for


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\rx",
        "\nx",
        " =1",
        '"=1+1',
        "'=1+1",
        "''=1",
        "＝1",  # noqa: RUF001
        "＠SUM",  # noqa: RUF001
        "=HYPERLINK(0)",
    ],
)
def test_what_a_spreadsheet_would_run_is_neutralised(text):
    assert neutralise(text) == "'" + text.replace("\r", " ")


@pytest.mark.parametrize("text", ["", "customer-1", "a=b", "1-2", "O'Hara", "#f00d", "mini:2026-W42:c%401"])
def test_ordinary_texts_are_left_alone(text):
    assert neutralise(text) == text


@given(st.text())
def test_no_cell_of_a_file_begins_as_a_formula_behind_whatever_it_is_wrapped_in(text):
    written = io.StringIO()
    pd.DataFrame({"a": [neutralise(text)], "b": [1]}).to_csv(written, index=False)
    (_, row) = csv.reader(io.StringIO(written.getvalue(), newline=""))
    cell = row[0]
    one_line = text.replace("\r", " ")
    assert cell in (one_line, "'" + one_line)
    if not cell.startswith("'"):
        assert cell.lstrip(" \"'`")[:1] not in ("=", "+", "-", "@", "\t", "\r")


def test_instants_are_iso_in_utc_to_the_millisecond():
    instants = as_instants(pd.Series([1_700_000_000_123_456, None, 0], dtype="object"))
    assert instants == ["2023-11-14T22:13:20.123Z", "", "1970-01-01T00:00:00.000Z"]


def test_a_file_that_is_not_finished_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text("old")

    def fail_half_way():
        with replacing(path) as file:
            file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_finished_file_replaces_the_old_one(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text("old")
    with replacing(path) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@given(st.integers(0, 4 * 10**15), st.integers(0, 4 * 10**15))
def test_a_timeline_never_has_more_steps_than_a_chart_can_show(one, other):
    first, last = min(one, other), max(one, other)
    width = width_for(first, last)
    assert width % 1_000_000 == 0
    assert (last - first // width * width) // width < MOST_STEPS
