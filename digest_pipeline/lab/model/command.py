"""``digest lab explore``."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from digest_pipeline.lab.model.explorer import Explored, explore, plan
from digest_pipeline.lab.model.rules import Can

ALL = "all"
DOCUMENTED = (Can.REPLAYS, Can.LOOK_UP, Can.NEITHER)
_COLUMNS = ("can", "keys", "workers", "reconcilers", "faults", "acts", "with", "depth", "states", "transitions", "seconds", "space")  # fmt: skip


@click.command("explore")
@click.option("--keys", type=click.IntRange(1, 3), default=2, show_default=True, help="Deliveries in the largest worlds.")  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 3), default=2, show_default=True, help="Claims in hand at once."
)
@click.option("--faults", type=click.IntRange(0, 3), default=2, show_default=True, help="Crashes, lost replies, refusals, throttling, wrong look-ups: in all, at any moment.")  # fmt: skip
@click.option("--can", "can", type=click.Choice([*map(str, Can), ALL]), default=ALL, show_default=True, help="What the provider offers to settle an unknown with; all: each of the first three.")  # fmt: skip
@click.option("--depth", type=click.IntRange(1), help="Stop after so many steps; without it, at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def explore_command(keys: int, workers: int, faults: int, can: str, depth: int | None, as_json: bool) -> None:
    """Take every interleaving of a pure model of a delivery's life, and check each step and state.

    Workers, two reconcilers, a cleaner, a person, late results and late events of the provider, with a
    crash anywhere. The model takes its decisions with the package's own retry policy and rules of
    evidence, and only arrows of the transition table. A space is exhausted, or the output says where it
    was cut. A step that breaks an invariant is shown with the shortest way to it. Everything at once is
    too large: several worlds are explored for each capability, which together bring every pair of
    actors together. Takes minutes, and up to two gigabytes.
    """
    cans = DOCUMENTED if can == ALL else (Can(can),)
    found = []
    for rules in plan(cans, keys, workers, faults):
        found.append(explore(rules, depth))
        if not as_json:
            one = found[-1].to_json()
            click.echo(
                f"{one['can']}, {one['keys']} keys: {one['states']:,} states in {one['seconds']} s", err=True
            )
    _show(found, as_json)
    if any(one.violation for one in found):
        raise click.exceptions.Exit(1)


def _show(found: list[Explored], as_json: bool) -> None:
    worlds = [one.to_json() for one in found]
    if as_json:
        ok = not any(one.violation for one in found)
        click.echo(json.dumps({"ok": ok, "exhausted": all(one.exhausted for one in found), "worlds": worlds}))
        return
    table = Table(title="every interleaving")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("depth", "states", "transitions") else "left")
    for world in worlds:
        table.add_row(*(_plain(world[column]) for column in _COLUMNS))
    # Piped, a console is 80 columns wide, which would cut every figure.
    Console(width=max(150, Console().width)).print(table)
    for world in worlds:
        if world["broken"]:
            click.echo(f"{world['can']}: {'; '.join(world['broken'])}")
            click.echo(
                "\n".join(f"  {number}. {line}" for number, line in enumerate(world["trace"], start=1))
            )


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
