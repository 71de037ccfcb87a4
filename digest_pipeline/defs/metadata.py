"""What assets and checks show in Dagster: numbers that plot, small tables, links. Nothing private.

Only whole and real numbers are plotted over partitions. Every value is stored twice, so tables are
short and the long lists stay in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg

from digest_pipeline.reconciliation.reporting.report import Report
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest
from digest_pipeline.states import DEAD_LETTERS, REACHED, UNSETTLED, State

MOST_ROWS = 30
"""Of any table."""

Row = Mapping[str, Any]


def tags_of(digest: Digest) -> dict[str, str]:
    """Return the tags that every asset of a digest has, to search for in the UI."""
    return {"digest/cadence": str(digest.cadence), "digest/gateway": digest.gateway.kind}


def table(columns: Mapping[str, str], rows: Iterable[Row]) -> dg.TableMetadataValue:
    """Return the first rows as a table. ``columns``: names to ``int``, ``float``, ``bool`` or ``string``."""
    shown = [row for row, _ in zip(rows, range(MOST_ROWS), strict=False)]
    schema = dg.TableSchema([dg.TableColumn(name, type=kind) for name, kind in columns.items()])
    records = [dg.TableRecord({name: row[name] for name in columns}) for row in shown]
    return dg.MetadataValue.table(records=records, schema=schema)


def by_state(tenants: Sequence[Row]) -> dict[str, Any]:
    """Return how many are in each state; with several tenants also each one's line, the worst first."""
    states = [{"state": str(state), "customers": sum(row[state] for row in tenants)} for state in State]
    shown = {"by_state": table({"state": "string", "customers": "int"}, states)}
    if len(tenants) > 1:
        worst = sorted(tenants, key=lambda row: (row["balanced"], row["coverage"], row["tenant"]))
        shown["by_tenant"] = table(_TENANT, [_line(row) for row in worst])
    return shown


# A wide table makes Dagster's page scroll sideways, and the summary above it run out of sight.
_TENANT = {
    "tenant": "string",
    "eligible": "int",
    "sent": "int",
    "suppressed": "int",
    "failed": "int",
    "open": "int",
    "coverage": "float",
    "balanced": "bool",
}


def _line(row: Row) -> Row:
    return {
        **row,
        "sent": sum(row[state] for state in REACHED),
        "failed": sum(row[state] for state in DEAD_LETTERS),
        "open": sum(row[state] for state in UNSETTLED),
    }


def not_sent(rows: Sequence[Row]) -> dg.TableMetadataValue:
    """Return why customers got nothing, or nothing yet."""
    return table({"outcome": "string", "reason": "string", "customers": "int"}, rows)


def links(settings: Settings, report: Report) -> dict[str, Any]:
    """Return the report's page and list, as links where the folder is served and as paths elsewhere."""
    return {"report": _link(settings, report.html), "csv": _link(settings, report.csv)}


def _link(settings: Settings, file: Path) -> Any:
    if settings.reports_url:
        return dg.MetadataValue.url(f"{settings.reports_url}/{quote(file.name)}")
    return dg.MetadataValue.path(str(file))


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 customer``, ``2,562 customers``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(counts: Mapping[str, int]) -> str:
    """Return ``opted out 1,370, invalid address 91``, the largest first; without those that are 0."""
    largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in largest if count)
