"""The commands that run the benchmarks."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from digest_pipeline.lab.bench import freeze as freezing
from digest_pipeline.lab.bench import send as sending


@click.group("bench")
def bench() -> None:
    """Measure what the guarantees cost on this machine.

    Each benchmark runs the least that could do the same work beside ours and prints the ratio:
    figures of different machines, or of a busy one, compare badly, ratios within one run do.
    Needs PostgreSQL: DIGEST_TEST_POSTGRES_URL, or a server's programs installed.
    """


_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


@bench.command("send")
@click.option("--messages", type=click.IntRange(1), default=10_000, show_default=True, help="For each contestant, in each round.")  # fmt: skip
@click.option("--latency-ms", type=click.FloatRange(0), default=20.0, show_default=True, help="The sandbox provider's, from arrival to answer.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 2000), default=50, show_default=True, help="Provider calls under way.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True, help="Contestants take turns in each.")  # fmt: skip
@_as_json
def send_command(messages: int, latency_ms: float, concurrency: int, rounds: int, as_json: bool) -> None:
    """Send frozen messages through the whole delivery loop, and through a bare HTTP client.

    Contestants are a bare aiohttp loop that posts the same bytes from memory, our loop on a SQLite
    ledger, and our loop on a PostgreSQL ledger with fsync on. Each has a sandbox provider of its own,
    whose record shows in the end whether every key was accepted exactly once; if not, the command
    fails.
    """
    trial = sending.SendTrial(messages, latency_ms, concurrency, rounds)
    standings = sending.compare(trial, _teller(as_json))
    found = sending.to_json(trial, standings)
    _show(found, as_json, _send_table(standings))


@bench.command("freeze")
@click.option("--customers", type=click.IntRange(1), default=1_000_000, show_default=True)
@_as_json
def freeze_command(customers: int, as_json: bool) -> None:
    """Freeze generated customers, and run the bare INSERT ... SELECT of the same rows.

    Source and ledger are two databases of one PostgreSQL server. Also prints how many digests are
    composed in a second. Fails if a customer is missing in the manifest.
    """
    result = freezing.measure(customers, _teller(as_json))
    _show(freezing.to_json(result), as_json, _freeze_table(result))


def _teller(as_json: bool) -> Any:
    return (lambda _: None) if as_json else (lambda line: click.echo(line, err=True))


def _show(found: dict[str, Any], as_json: bool, table: Table) -> None:
    if as_json:
        click.echo(json.dumps(found))
    else:
        Console().print(table)
    if not found["ok"]:
        raise click.exceptions.Exit(1)


def _send_table(standings: list[sending.Standing]) -> Table:
    table = Table(title="messages per second, median (lowest to highest)")
    for title in (
        "contestant",
        "messages/s",
        "ratio",
        "aim",
        "CPU ms each",
        "peak MB",
        "exactly once",
        "released",
    ):
        table.add_column(title, justify="left" if title == "contestant" else "right")
    for one in standings:
        table.add_row(
            one.name,
            f"{one.per_second.median:.0f} ({one.per_second.low:.0f} to {one.per_second.high:.0f})",
            f"{one.ratio.median:.2f} ({one.ratio.low:.2f} to {one.ratio.high:.2f})",
            "" if one.aim is None else f">= {one.aim:.2f}",
            f"{one.cpu_ms_per_message:.2f}",
            f"{one.peak_rss_mb:.0f}",
            f"yes, {one.accepted}"
            if one.exactly_once
            else f"NO: {one.duplicates} twice, {one.accepted} in all",
            str(one.released),
        )
    return table


def _freeze_table(result: freezing.FreezeResult) -> Table:
    table = Table(title=f"freezing {result.customers:,} customers")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("aim", justify="right")
    table.add_row("freeze", f"{result.seconds:.1f} s", "")
    table.add_row("bare INSERT ... SELECT", f"{result.bare_seconds:.1f} s", "")
    table.add_row("ratio", f"{result.ratio:.2f}", f"<= {result.ratio_aim:g}")
    table.add_row("peak memory", f"{result.peak_rss_mb:.0f} MB", f"< {result.memory_aim_mb:g} MB")
    table.add_row("compose", f"{result.composed_per_second:.0f} digests/s", "")
    table.add_row("frozen", f"{result.frozen:,}", f"{result.customers:,}")
    return table
