from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.gateways.retry_after import MAX_SECONDS, parse_retry_after

NOW = datetime(2026, 10, 14, 8, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("90", 90.0),
        (" 90 ", 90.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("+3", 3.0),
        ("-5", 0.0),
        ("00000000000000000060", 60.0),
        ("7200", 7200.0),
        ("99999999", MAX_SECONDS),
        ("9" * 10_000, MAX_SECONDS),
        ("Wed, 14 Oct 2026 08:01:30 GMT", 90.0),
        ("Wed, 14 Oct 2026 08:01:30 -0000", 90.0),
        ("Wed, 14 Oct 2026 10:01:30 +0200", 90.0),
        ("Wednesday, 14-Oct-26 08:01:30 GMT", 90.0),
        ("Wed Oct 14 08:01:30 2026", 90.0),
        ("Wed, 14 Oct 2026 07:59:00 GMT", 0.0),
        ("Wed, 14 Oct 2099 07:59:00 GMT", MAX_SECONDS),
    ],
)
def test_seconds_and_dates_are_read_and_clamped(value, expected):
    assert parse_retry_after(value, NOW) == expected


@pytest.mark.parametrize(
    "value",
    [None, "", " ", "soon", "nan", "inf", "-inf", "1e3", "1_000", "0x10", "\u0669\u0660", "\uff19\uff10", "90s", "1,5",
     "Wed, 99 Oct 2026 08:01:30 GMT", "Mon, 01 Jan 0001 00:00:00 +9999", "Wed, 14 Oct 2026 08:01:30 +99999999",
     "\udcff90", "90\x00"],
)  # fmt: skip
def test_anything_else_says_nothing(value):
    assert parse_retry_after(value, NOW) in (None, 0.0)
    assert parse_retry_after(value, NOW) is None or value.startswith("Mon, 01 Jan 0001")


DATE_LIKE = st.lists(
    st.sampled_from(
        [
            "Wed,",
            "14",
            "99",
            "Oct",
            "2026",
            "0001",
            "99999",
            "08:01:30",
            "25:61:61",
            "GMT",
            "-0000",
            "+9999999",
        ]
    )
).map(" ".join)


@given(st.text() | DATE_LIKE)
def test_no_text_raises_or_leaves_the_bounds(value):
    found = parse_retry_after(value, NOW)
    assert found is None or 0.0 <= found <= MAX_SECONDS


@given(st.integers(min_value=0, max_value=int(MAX_SECONDS)))
def test_both_forms_of_the_same_wait_agree(seconds):
    date = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert parse_retry_after(date, NOW) == parse_retry_after(str(seconds), NOW) == float(seconds)
