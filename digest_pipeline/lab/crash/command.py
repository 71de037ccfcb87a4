"""``digest lab crash``."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from digest_pipeline.faults import Point
from digest_pipeline.lab.crash import cells as grid
from digest_pipeline.lab.crash import report
from digest_pipeline.lab.crash.jobs import Tell, Workshop, facilities
from digest_pipeline.lab.crash.provider import find_provider
from digest_pipeline.lab.crash.result import Result


def _choice(members: type) -> click.Choice[str]:
    return click.Choice([str(member) for member in members])  # type: ignore[attr-defined]


@click.command("crash")
@click.option(
    "--full", is_flag=True, help="Every cell; without it some forty that show each of them at work."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: totals, each cell, what was skipped."
)
@click.option("--point", "points", type=_choice(Point), multiple=True, help="Only these points.")
@click.option("--fault", "harms", type=_choice(grid.Harm), multiple=True, help="Only these faults.")
@click.option("--engine", "engines", type=_choice(grid.Engine), multiple=True, help="Only this ledger.")
@click.option(
    "--can", "cans", type=_choice(grid.Can), multiple=True, help="Only this capability of the gateway."
)
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Cells at once.")
@click.option("--provider", "provider", default=None, help="Your own gateway's: package.module:Class.")
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep what is left of broken cells."
)
def crash(
    full: bool,
    as_json: bool,
    points: tuple[str, ...],
    harms: tuple[str, ...],
    engines: tuple[str, ...],
    cans: tuple[str, ...],
    jobs: int,
    provider: str | None,
    keep: Path | None,
) -> None:
    """Break a small period at every point, recover it as production would, and judge.

    Each cell is a point x a fault x a ledger x what the gateway can do, or a named sequence of failures,
    with real processes and real signals. The provider's own store is the judge. Fails when an invariant
    breaks in any cell, or when a fault could not be brought about.
    """
    make_provider, imports = find_provider(provider)
    asked = grid.chosen(
        grid.all_cells(facilities(make_provider)),
        full=full,
        points=points,
        harms=harms,
        engines=engines,
        cans=cans,
    )
    skipped = [cell for cell in asked if cell.skip is not None]
    began = time.monotonic()
    with ExitStack() as stack:
        tell = _progress(stack, len(asked) - len(skipped))
        results = Workshop(make_provider, imports, keep).run(asked, jobs, tell)
    data = report.as_data(results, skipped, time.monotonic() - began, full)
    _show(data, as_json)
    if not data["holds"]:
        raise click.exceptions.Exit(1)


def _progress(stack: ExitStack, total: int) -> Tell:
    console = Console(stderr=True)
    if not console.is_terminal:
        return lambda _: None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = stack.enter_context(Progress(*columns, console=console, transient=True))
    task = progress.add_task("cells", total=total)

    def tell(result: Result) -> None:
        progress.update(task, advance=1, description=result.cell.name)
        if not result.holds:
            progress.console.print(f"[red]broken[/] {result.cell.name}")

    return tell


def _show(data: dict[str, object], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(data))
        return
    console = Console()
    # A log has no width of its own.
    console.print(report.table(data), width=None if console.is_terminal else 120)
    for line in report.closing_lines(data):
        click.echo(line)
