"""The report's charts: inline SVG that takes its colours from the page, the same bytes every time."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from digest_pipeline.ledger.measures import Tries
from digest_pipeline.reconciliation.reporting.timeline import Timeline
from digest_pipeline.states import State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours no chart would use by chance, each replaced by a variable of the page: light, dark and print.
INK, LINE, GOOD, WAIT, DOUBT, BAD, QUIET = (f"#00000{number}" for number in range(1, 8))
_VARIABLES = {
    INK: "--muted",
    LINE: "--line",
    GOOD: "--good",
    WAIT: "--wait",
    DOUBT: "--doubt",
    BAD: "--bad",
    QUIET: "--quiet",
}
STATE_COLOURS: dict[State, str] = {
    State.SENT: GOOD,
    State.CLEANED: GOOD,
    State.PENDING: WAIT,
    State.CLAIMED: WAIT,
    State.RETRY: WAIT,
    State.UNKNOWN: DOUBT,
    State.WRITTEN_OFF: DOUBT,
    State.FAILED: BAD,
    State.DEAD: BAD,
    State.SUPPRESSED: QUIET,
}
_SETTINGS: Any = {
    "svg.hashsalt": "digest_pipeline",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
_HALF, _WHOLE, _ROW = 5.0, 10.4, 0.3
"""Inches: half and all of the page's width, and one bar."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: ``alternative`` says in words all that the picture shows."""

    name: str
    title: str
    svg: str
    alternative: str


def states_chart(states: Mapping[str, int]) -> Chart:
    """Return the deliveries by state."""
    shown = [(state, states[state]) for state in STATE_COLOURS if states.get(state, 0)]
    rows = [(state.replace("_", " "), count, STATE_COLOURS[State(state)]) for state, count in shown]
    words = ", ".join(f"{name} {count:,}" for name, count, _ in rows) or "no deliveries"
    return Chart("states", "Deliveries by state", _bars("states", rows), f"Deliveries by state: {words}.")


def attempts_chart(tries: Sequence[Tries]) -> Chart:
    """Return the attempts by how they ended."""
    rows = [(name_of(one), one.attempts, _colour(one)) for one in tries]
    words = ", ".join(f"{name} {count:,}" for name, count, _ in rows) or "no attempts"
    return Chart("attempts", "Attempts by outcome", _bars("attempts", rows), f"Attempts by outcome: {words}.")


def name_of(one: Tries) -> str:
    """Return how people read an attempt's end, e.g. ``not sent (transient)``."""
    outcome = one.outcome.replace("_", " ")
    same = one.failure_class in (None, one.outcome)
    return outcome if same else f"{outcome} ({one.failure_class})"


def _colour(one: Tries) -> str:
    if one.outcome == "accepted":
        return GOOD
    if one.outcome in ("ambiguous", "expired"):
        return DOUBT
    return BAD if one.outcome in ("refused", "account_refused") else WAIT


def deliveries_chart(timeline: Timeline | None) -> Chart:
    """Return the accepted deliveries over time."""
    if timeline is None:
        return Chart("deliveries", "Accepted over time", "", "Nothing has been accepted.")
    last = timeline.start + timeline.width * len(timeline.counts)
    peak = max(timeline.counts)
    words = (
        f"{sum(timeline.counts):,} deliveries accepted between {timeline.start:%Y-%m-%d %H:%M:%S} and "
        f"{last:%Y-%m-%d %H:%M:%S} UTC, at most {peak:,} per {timeline.per}."
    )
    title = f"Accepted per {timeline.per}"
    return Chart("deliveries", title, _columns("deliveries", timeline), words)


def _bars(name: str, rows: Sequence[tuple[str, int, str]]) -> str:
    if not rows:
        return ""

    def draw(axes: Axes) -> None:
        labels, counts, colours = zip(*rows, strict=True)
        axes.barh(labels, counts, color=colours, height=0.62)
        axes.invert_yaxis()
        axes.set_xlim(0, max(counts) * 1.2)
        axes.xaxis.set_visible(False)
        axes.tick_params(axis="y", length=0)
        for place, count in enumerate(counts):
            axes.annotate(
                f"{count:,}", (count, place), xytext=(5, 0), textcoords="offset points", va="center"
            )
        _frame(axes, "left")

    return _svg(name, (_HALF, 0.3 + _ROW * len(rows)), draw)


def _columns(name: str, timeline: Timeline) -> str:
    def draw(axes: Axes) -> None:
        count = len(timeline.counts)
        axes.bar(range(count), timeline.counts, width=0.86, align="edge", color=GOOD)
        axes.set_xlim(0, max(count, 6))
        axes.set_ylim(0, max(timeline.counts) * 1.05)
        step = max(1, math.ceil(count / 6))
        axes.set_xticks(range(0, count + 1, step))
        axes.set_xticklabels([_label(timeline, place) for place in range(0, count + 1, step)])
        axes.yaxis.set_major_locator(_whole_numbers())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, pad=6)
        axes.set_xlabel(f"UTC, from {timeline.start:%Y-%m-%d}")
        _frame(axes, "bottom")

    return _svg(name, (_WHOLE, 2.8), draw)


def _label(timeline: Timeline, place: int) -> str:
    at = timeline.start + timeline.width * place
    if timeline.width >= timedelta(days=1):
        return f"{at:%d %b}"
    if timeline.width * len(timeline.counts) > timedelta(hours=20):
        return f"{at:%d %b %H:%M}"
    return f"{at:%H:%M:%S}" if timeline.width < timedelta(minutes=1) else f"{at:%H:%M}"


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=4, integer=True)


def _frame(axes: Axes, kept: str) -> None:
    for side, spine in axes.spines.items():
        spine.set_visible(side == kept)


def _svg(name: str, size: tuple[float, float], draw: Any) -> str:
    # Imported only where a chart is drawn: it takes longer than everything else the package loads. No
    # pyplot, so nothing is shared between threads.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with mpl.rc_context(_SETTINGS):
        figure: Figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", metadata=no_metadata)
    return _inline(name, buffer.getvalue())


def _inline(name: str, document: str) -> str:
    """Return the drawing as an element of a page: no prolog, ids of its own, the page's colours."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\1{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    # The page scales it by its view box, and says what it shows.
    svg = re.sub(r'<svg\b[^>]*?(viewBox="[^"]+")[^>]*>', r'<svg \1 aria-hidden="true">', svg, count=1)
    return re.sub(r">\s+<", ">\n<", svg).strip()
