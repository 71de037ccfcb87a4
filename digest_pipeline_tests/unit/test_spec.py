from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from digest_pipeline.errors import PeriodError, SpecError
from digest_pipeline.periods import Cadence, parse_period
from digest_pipeline_tests.harness.ledgers import tiny_spec


@pytest.mark.parametrize(
    ("change", "field", "hint"),
    [
        ({"nmae": "x"}, "nmae", "did you mean 'name'?"),
        ({"rate": {"per_secnd": 5}}, "rate.per_secnd", "did you mean 'per_second'?"),
        ({"sending": {"lane": 5}}, "sending.lane", "did you mean 'lanes'?"),
        ({"cleanup": {"delay_hour": 5}}, "cleanup.delay_hour", "did you mean 'delay_hours'?"),
        ({"content": {"sendr": "x"}}, "content.sendr", "did you mean 'sender'?"),
        ({"zzzz": 1}, "zzzz", "no such field"),
        ({"name": "Tiny Digest"}, "name", "pattern"),
        ({"cadence": "monthly"}, "cadence", "'weekly' or 'daily'"),
        ({"time_zone": "Europe/Berln"}, "time_zone", "did you mean Europe/Berlin?"),
        ({"send_hour": 24}, "send_hour", "less than or equal to 23"),
        ({"first_period": "2025-W53"}, "first_period", "2025-W01 to 2025-W52"),
        ({"last_period": "2023-W01"}, "last_period", "before first_period"),
        ({"rate": {"per_second": 0}}, "rate.per_second", "greater than 0"),
        ({"rate": {"burst": "many"}}, "rate.burst", "integer"),
        ({"source": {"env": "lower"}}, "source.env", "pattern"),
        ({"source": "sqlite:///x.db"}, "source", "dictionary"),
        ({"sending": {"timeout_seconds": 60, "lease_seconds": 100}}, "sending", "lease_seconds (100)"),
        (
            {"delivery_window": {"opens_after_hours": 9, "closes_after_hours": 9}},
            "delivery_window",
            "open before it closes",
        ),
        ({"late": {"allow": True}}, "late", "needs late.reason"),
        ({"cleanup": {"proof": "bounced"}}, "cleanup.proof", "accepted"),
        ({"shared_address": "both"}, "shared_address", "separate"),
        ({"tenants": {"mode": "many"}}, "tenants.mode", "single"),
        ({"customers": {"sql": "SELECT 1"}}, "customers", ":period_end and :period_start"),
        (
            {"customers": {"sql": "SELECT :period_start, :period_end, :day"}},
            "customers",
            "binds day, which nothing supplies",
        ),
        ({"content": {"sql": "SELECT :period_start"}}, "content", ":period_end"),
    ],
)
def test_a_mistake_is_told_with_its_file_its_field_and_what_to_do(
    tmp_path: Path, change: dict[str, Any], field: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        tiny_spec(tmp_path, **change)
    told = str(caught.value)
    assert ".yaml: " in told
    assert str(tmp_path) in told
    assert field in told
    assert hint in told


@pytest.mark.parametrize(
    "field",
    ["name", "cadence", "time_zone", "first_period", "source", "customers", "content", "gateway", "rate"],
)
def test_a_required_field_that_is_missing_is_named(tmp_path: Path, field: str) -> None:
    from digest_pipeline.spec_loading import load_file
    from digest_pipeline_tests.harness.ledgers import spec_fields

    fields = spec_fields(tmp_path)
    del fields[field]
    import yaml

    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump(fields), encoding="utf-8")
    with pytest.raises(SpecError, match=rf"one\.yaml: {field}: is required"):
        load_file(path)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        tiny_spec(tmp_path, send_hour=99, cadence="yearly")
    assert len(str(caught.value).splitlines()) == 2


def test_no_value_of_a_file_is_repeated_in_its_errors(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        tiny_spec(tmp_path, gateway={"settings": {"api_key": ["S3cr3t"]}})
    assert "S3cr3t" not in str(caught.value)


def test_a_setting_comes_from_the_environment_or_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = tiny_spec(
        tmp_path,
        source={"env": "TINY_SOURCE", "default": "sqlite:///d.db"},
        gateway={"settings": {"url": {"env": "TINY_URL"}, "plain": "as it is"}},
    )
    monkeypatch.delenv("TINY_SOURCE", raising=False)
    monkeypatch.setenv("TINY_URL", "http://one")
    assert digest.source.value() == "sqlite:///d.db"
    assert digest.gateway.resolved() == {"url": "http://one", "plain": "as it is"}
    monkeypatch.setenv("TINY_SOURCE", "sqlite:///e.db")
    assert digest.source.value() == "sqlite:///e.db"
    monkeypatch.delenv("TINY_URL")
    with pytest.raises(SpecError, match="TINY_URL is not set"):
        digest.gateway.resolved()


def test_a_period_outside_the_digests_own_is_refused_with_its_range(tmp_path: Path) -> None:
    digest = tiny_spec(tmp_path, first_period="2025-W02", last_period="2025-W10")
    for label in ("2025-W01", "2025-W11"):
        with pytest.raises(PeriodError, match="from 2025-W02 to 2025-W10"):
            digest.period(label)
    assert digest.period("2025-W10").label == "2025-W10"
    assert digest.period("2025-03-05").label == "2025-W10"
    open_ended = tiny_spec(tmp_path, first_period="2025-W02")
    with pytest.raises(PeriodError, match="2025-W02 onwards"):
        open_ended.period("2025-W01")
    assert open_ended.last is None


def test_the_ended_periods_stop_at_the_last_one_or_at_now(tmp_path: Path) -> None:
    digest = tiny_spec(tmp_path, first_period="2025-W08", last_period="2025-W10")
    during = datetime(2025, 3, 3, 12, tzinfo=UTC)  # Monday of W10
    assert [p.label for p in digest.ended_periods(during)] == ["2025-W08", "2025-W09"]
    assert [p.label for p in digest.ended_periods()] == ["2025-W08", "2025-W09", "2025-W10"]
    assert tiny_spec(tmp_path, first_period="2025-W40").ended_periods(during) == []


def test_the_window_is_counted_from_the_periods_end(tmp_path: Path) -> None:
    digest = tiny_spec(tmp_path, delivery_window={"opens_after_hours": 7, "closes_after_hours": 31})
    opens, closes = digest.window(parse_period("2025-W10", Cadence.WEEKLY, digest.time_zone))
    assert (opens, closes) == (datetime(2025, 3, 10, 6, tzinfo=UTC), datetime(2025, 3, 11, 6, tzinfo=UTC))


def test_a_cast_in_the_sql_is_no_bound_value(tmp_path: Path) -> None:
    sql = (
        "SELECT id::text AS customer_id, 'a' AS recipient FROM t WHERE d >= :period_start AND d < :period_end"
    )
    assert tiny_spec(tmp_path, customers={"sql": sql}).customers.sql == sql
