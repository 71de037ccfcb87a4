"""How the command line speaks: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

# Soft: a line that a program reads, or a person searches for, must not be broken at 80 characters.
say = Console(stderr=True, highlight=False, soft_wrap=True)
results = Console(highlight=False, soft_wrap=True)

EXIT_CODES = """\b
Exit codes:
  0  done, and everything holds
  1  it failed, or something does not hold
  2  what was asked for cannot be done: nothing was written
"""

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of a table."
)


def show(title: str, rows: Mapping[str, Any], as_json: bool) -> None:
    """Print one set of facts, for a person or for a program."""
    if as_json:
        click.echo(json.dumps(rows, default=str))
        return
    table = Table(title=escape(title), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), _plain(value))
    results.print(table)


def show_rows(title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a list of facts with the same fields."""
    listed = list(rows)
    if not listed:
        return
    table = Table(title=escape(title), title_justify="left")
    for name in listed[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in listed:
        table.add_row(*(_plain(value) for value in row.values()))
    results.print(table)


def _plain(value: Any) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.4g}" if value < 100 else f"{value:,.1f}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v) or "-"
        case list() | tuple():
            return ", ".join(_plain(one) for one in value) or "-"
        case _:
            # Rich would take "[sale]" in a subject for a style, and drop it.
            return escape(str(value))
