"""What the harness tells: a table for people, plain data for programs, Markdown for docs/guarantees.md."""

from __future__ import annotations

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from digest_pipeline.lab.crash.cells import GROUPS, Can, Cell, Kind
from digest_pipeline.lab.crash.result import Result, to_json

COUNTED = ("duplicates", "lost", "stuck", "invisible", "cleaned_without_proof")


def as_data(results: Sequence[Result], skipped: Iterable[Cell], seconds: float, full: bool) -> dict[str, Any]:
    """Return everything as plain data: totals first, then each cell, then what was skipped and why."""
    cells = [to_json(result) for result in results]
    listed = [
        {"cell": cell.name, "fault": cell.harm, "engine": cell.engine, "reason": cell.skip}
        for cell in skipped
    ]
    return {
        "lab": "crash",
        "full": full,
        # Nothing made proves nothing.
        "holds": bool(cells) and all(cell["holds"] for cell in cells),
        "totals": totals(cells) | {"cells_skipped": len(listed), "seconds": round(seconds, 1)},
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "cells": cells,
        "skipped": listed,
    }


def totals(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over all cells. Duplicates of the documented exception are counted apart."""
    regular = [cell for cell in cells if cell["kind"] != Kind.DOCUMENTED_EXCEPTION]
    excepted = [cell for cell in cells if cell["kind"] == Kind.DOCUMENTED_EXCEPTION]
    return {
        "cells_run": len(cells),
        "cells_hit": sum(bool(cell["hit"]) for cell in cells),
        "cells_broken": sum(not cell["holds"] for cell in cells),
        **{name: sum(cell.get(name, 0) for cell in regular) for name in COUNTED},
        "held": sum(sum(cell.get("held", {}).values()) for cell in cells),
        "unresolved": sum(cell.get("unresolved", 0) for cell in cells),
        "sends": sum(cell["sends"] for cell in cells),
        "cleanup_attempts": sum(cell["cleanup_attempts"] for cell in cells),
        "cleaned": sum(cell["cleaned"] for cell in cells),
        "documented_exceptions": len(excepted),
        "duplicates_in_documented_exceptions": sum(cell.get("duplicates", 0) for cell in excepted),
    }


def line_of(cell: Mapping[str, Any]) -> tuple[str, str]:
    """Return the line of the table that a cell belongs to: where, and what group of faults."""
    if cell["sequence"] is not None:
        return str(cell["sequence"]), "sequence"
    group = GROUPS[cell["fault"]]
    if cell["kind"] == Kind.DOCUMENTED_EXCEPTION:
        group = "documented exception"
    return str(cell["point"]), group


def grid(cells: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]]:
    """Return the cells by line and capability, in the order in which they were run."""
    lines: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for cell in cells:
        lines.setdefault(line_of(cell), defaultdict(list))[str(cell["can"])].append(cell)
    return lines


def summary_of(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return what some cells of one line came to, in a word or two."""
    if not cells:
        return "-"
    if not all(cell["holds"] for cell in cells):
        broken = Counter(
            kind
            for cell in cells
            for kind in (cell.get("violations") or {"not made": ()})
            if not cell["holds"]
        )
        return "BROKEN: " + ", ".join(f"{kind} {count}" for kind, count in broken.items())
    parts = [f"ok {len(cells)}"]
    held = sum(sum(cell.get("held", {}).values()) for cell in cells)
    twice = sum(cell.get("duplicates", 0) for cell in cells)
    if twice:
        parts.append(f"{twice} twice")
    if held:
        parts.append(f"{held} held")
    return ", ".join(parts)


def table(data: Mapping[str, Any]) -> Table:
    """Return a table: one line per point and group of faults, one column per capability."""
    made = Table(title="digest lab crash", title_justify="left")
    for title in ("point", "fault", *Can):
        made.add_column(str(title).replace("_", " "), overflow="fold")
    for (point, group), columns in grid(data["cells"]).items():
        words = [summary_of(columns.get(str(can), [])) for can in Can]
        style = "red" if any(word.startswith("BROKEN") for word in words) else None
        made.add_row(escape(point.replace("_", " ")), group, *words, style=style)
    return made


def closing_lines(data: Mapping[str, Any]) -> list[str]:
    """Return what follows the table: what is broken, what was skipped and why, and the sums."""
    lines = [f"BROKEN {cell['cell']}: {cell['why']}" for cell in data["cells"] if not cell["holds"]]
    reasons = Counter(one["reason"] for one in data["skipped"])
    lines += [f"skipped {count}: {reason}" for reason, count in reasons.items()]
    sums = data["totals"]
    lines.append(
        f"{sums['cells_run']} cells in {sums['seconds']:.0f} s, {sums['cells_hit']} hit, "
        f"{sums['cells_broken']} broken; " + ", ".join(f"{name} {sums[name]}" for name in COUNTED)
    )
    lines.append(
        f"held for a person {sums['held']}; sent twice in the {sums['documented_exceptions']} cells of the "
        f"documented exception {sums['duplicates_in_documented_exceptions']}"
    )
    return [line.replace("_", " ") for line in lines]


def to_markdown(data: Mapping[str, Any]) -> str:
    """Return the measured section of docs/guarantees.md, from what ``--full --json`` printed."""
    sums = data["totals"]
    lines = [
        f"`digest lab crash{' --full' if data['full'] else ''}` made {sums['cells_run']} cells in "
        f"{sums['seconds'] / 60:.0f} minutes; the point was hit in {sums['cells_hit']} of them.",
        "",
        "| " + " | ".join(name.replace("_", " ") for name in COUNTED) + " | held for a person |",
        "|" + "---:|" * (len(COUNTED) + 1),
        "| " + " | ".join(str(sums[name]) for name in (*COUNTED, "held")) + " |",
        "",
        f"Beside them, {sums['documented_exceptions']} cells show the documented exception: "
        f"{sums['duplicates_in_documented_exceptions']} customers were sent a second message in them.",
        "",
        "| point | fault | " + " | ".join(str(can).replace("_", " ") for can in Can) + " |",
        "|---|---|" + "---|" * len(Can),
    ]
    for (point, group), columns in grid(data["cells"]).items():
        words = [summary_of(columns.get(str(can), [])) for can in Can]
        lines.append(f"| {point.replace('_', ' ')} | {group} | " + " | ".join(words) + " |")
    lines += ["", "Skipped:", ""]
    reasons = Counter(one["reason"] for one in data["skipped"])
    lines += [f"- {count} cells: {reason}" for reason, count in reasons.items()]
    return "\n".join(lines) + "\n"
