"""`digest bench` measures what it says it measures; how fast this machine is, no test asks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from digest_pipeline.lab.bench.command import bench


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(bench, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.mark.slow
def test_bench_send_compares_both_ledgers_with_a_bare_client_and_asks_the_provider_what_it_got() -> None:
    found = run("send", "--messages", "60", "--rounds", "2", "--latency-ms", "1", "--concurrency", "8")
    assert (found["benchmark"], found["messages"], found["rounds"], found["ok"]) == ("send", 60, 2, True)
    assert [one["name"] for one in found["contestants"]] == [
        "bare aiohttp",
        "SQLite ledger",
        "PostgreSQL ledger",
    ]
    for one in found["contestants"]:
        assert one["exactly_once"]
        assert (one["accepted"], one["duplicates"]) == (120, 0)
        assert 0 < one["per_second"]["low"] <= one["per_second"]["median"] <= one["per_second"]["high"]
        assert one["ratio"]["median"] > 0
        assert one["peak_rss_mb"] > 0
    assert found["contestants"][0]["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.slow
def test_bench_freeze_freezes_every_generated_customer_and_the_bare_statement_beside_it() -> None:
    found = run("freeze", "--customers", "300")
    assert (found["benchmark"], found["customers"], found["frozen"], found["ok"]) == (
        "freeze",
        300,
        300,
        True,
    )
    assert found["seconds"] > 0
    assert found["bare_seconds"] > 0
    assert found["composed_per_second"] > 0
    assert found["peak_rss_mb"] > 0


@pytest.mark.parametrize("command", ["send", "freeze"])
def test_each_benchmark_explains_itself(command: str) -> None:
    result = CliRunner().invoke(bench, [command, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output
