"""The report as one page: no script, nothing fetched, readable in light, in dark and on paper."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from digest_pipeline.reconciliation.reporting.charts import (
    attempts_chart,
    deliveries_chart,
    name_of,
    states_chart,
)
from digest_pipeline.reconciliation.reporting.figures import Figures, TenantFigures
from digest_pipeline.reconciliation.reporting.next_steps import next_steps
from digest_pipeline.reconciliation.reporting.verdict import verdict_of
from digest_pipeline.states import State

MOST_TENANTS = 200
MOST_ACTIONS = 200
_TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def page(figures: Figures, csv_name: str) -> str:
    """Return the whole page. The same figures give the same bytes."""
    tenants = sorted(figures.tenants, key=_worst_first)
    return _template().render(
        f=figures,
        s=figures.summary,
        c=figures.comparison,
        csv_name=csv_name,
        title=figures.digest.title or figures.digest.name,
        verdict=verdict_of(figures),
        steps=next_steps(figures),
        states=[str(state) for state in State],
        tenants=tenants[:MOST_TENANTS],
        actions=list(figures.actions)[-MOST_ACTIONS:],
        charts=[
            states_chart(figures.states),
            attempts_chart(figures.tries),
            deliveries_chart(figures.timeline),
        ],
    )


def _worst_first(one: TenantFigures) -> tuple[bool, float, str]:
    return one.balanced, one.coverage, one.tenant


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=lambda value: f"{value:,}",
        share=as_share,
        duration=as_duration,
        instant=as_instant,
        words=lambda text: str(text).replace("_", " "),
        ranked=_ranked,
        ending=name_of,
    )
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def as_share(value: float) -> str:
    """Return a share as a percentage that never rounds up to a whole that was not reached."""
    if 0.9999 <= value < 1:
        return "> 99.99 %"
    if 0 < value < 0.0001:
        return "< 0.01 %"
    return f"{value * 100:.2f}".rstrip("0").rstrip(".") + " %"


def as_duration(seconds: float | None) -> str:
    """Return a duration in the unit people would use."""
    if seconds is None:
        return "–"  # noqa: RUF001
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def as_instant(at: datetime) -> str:
    """Return an instant to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, Any]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
