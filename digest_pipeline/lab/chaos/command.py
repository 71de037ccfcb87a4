"""``digest lab chaos``."""

from __future__ import annotations

import json
import secrets
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from digest_pipeline.lab.chaos.play import Trial, play
from digest_pipeline.lab.crash.cells import Can


@click.command("chaos")
@click.option("--seconds", type=click.FloatRange(1), default=120.0, show_default=True, help="Of trouble; a quiet time follows.")  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 32), default=4, show_default=True, help="Processes that send."
)
@click.option(
    "--seed", type=int, default=None, help="Of what happens and when.  [default: another each time]"
)
@click.option("--can", type=click.Choice([str(can) for can in Can]), default=str(Can.REPLAYS), show_default=True,
              help="What the gateway can do about a message in doubt.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def chaos(seconds: float, workers: int, seed: int | None, can: str, as_json: bool) -> None:
    """Let several senders work on one PostgreSQL ledger while everything goes wrong at random, and judge.

    Workers are killed and stopped (also past their leases), the provider fails and dies, the database
    restarts in immediate mode. Then nothing more goes wrong, and the period is recovered as production
    would. What happens and when follows from the seed, which is printed; what it meets is the machine's.
    """
    trial = Trial(seconds, workers, secrets.randbelow(2**31) if seed is None else seed, Can(can))
    console = Console(stderr=True)
    console.print(f"seed {trial.seed}", highlight=False)
    with console.status("freezing") as status:
        data = play(trial, lambda line: status.update(line))
    if as_json:
        click.echo(json.dumps(data))
    else:
        _show(data)
    if not data["holds"]:
        raise click.exceptions.Exit(1)


def _show(data: dict[str, Any]) -> None:
    table = Table(title=f"digest lab chaos, seed {data['seed']}", title_justify="left", show_header=False)
    for name, value in data.items():
        if name not in ("lab", "actions", "seed"):
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            table.add_row(name.replace("_", " "), shown or "-")
    Console().print(table)
