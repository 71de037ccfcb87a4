"""Every cell that one key can come to, with the steps between them; checked as it is built.

The steps of a key depend on other keys only through what those use up: workers, reconcilers, faults and
acts. So one key alone, with all of these, comes to every cell that it can come to beside others; the
worlds of several keys are the products of this graph (``product``). Every invariant is about one cell,
so that here, where all of them are made, is where one that breaks is found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from digest_pipeline.lab.model.actors import steps
from digest_pipeline.lab.model.cell import Cell, canonical
from digest_pipeline.lab.model.invariants import broken, duplicates, wrong_step
from digest_pipeline.lab.model.row import Now, Row
from digest_pipeline.lab.model.rules import Rules
from digest_pipeline.lab.model.steps import Step
from digest_pipeline.states import State


@dataclass(frozen=True, slots=True)
class Edge:
    """A step between two nodes. ``everywhere``: it happens to all keys at once."""

    target: int
    who: str
    name: str
    fault: bool = False
    act: bool = False
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """What does not hold, and the shortest way there: one line for each step."""

    broken: tuple[str, ...]
    trace: tuple[str, ...]


@dataclass(slots=True)
class Graph:
    """The cells of one key, numbered; a node is a cell at a moment: ``cell * len(nows) + now``."""

    rules: Rules
    nows: tuple[Now, ...]
    only_duplicates: bool = False
    cells: list[Cell] = field(default_factory=list)
    edges: dict[int, list[Edge]] = field(default_factory=dict)
    taken: Counter[tuple[State, str, State]] = field(default_factory=Counter)
    """How often each arrow is taken, by where it starts and ends."""
    depth: int = 0
    is_whole: bool = True
    violation: Violation | None = None
    _numbers: dict[Cell, int] = field(default_factory=dict)
    _came_by: dict[int, tuple[int, Edge]] = field(default_factory=dict)

    def node(self, cell: Cell, now: Now) -> int:
        """Return the number of a cell at a moment, a new one for a cell not seen before."""
        number = self._numbers.setdefault(cell, len(self.cells))
        if number == len(self.cells):
            self.cells.append(cell)
        return number * len(self.nows) + self.nows.index(now)

    def at(self, node: int) -> tuple[Cell, Now]:
        """Return the cell and the moment of a node."""
        cell, now = divmod(node, len(self.nows))
        return self.cells[cell], self.nows[now]

    def way_to(self, node: int) -> tuple[str, ...]:
        """Return the first way found to a node, one line for each step."""
        lines: list[str] = []
        while node in self._came_by:
            node, edge = self._came_by[node]
            lines.append(f"{edge.who}: {edge.name} -> {describe(self.at(edge.target)[0], self.rules)}")
        return tuple(reversed(lines))


def build(rules: Rules, depth: int | None = None, *, only_duplicates: bool = False) -> Graph:
    """Take every step from one pending key, breadth first, until there is none (or to a depth).

    ``only_duplicates``: go on past everything else that breaks, to see what a customer would.
    """
    windows = (False, True) if rules.window else (False,)
    accounts = (0, 1) if rules.accounts else (0,)
    graph = Graph(
        rules, tuple(Now(over, account) for over in windows for account in accounts), only_duplicates
    )
    start = graph.node(Cell(Row(budget=rules.budget)), graph.nows[0])
    layer = [(start, rules.faults, rules.acts or 0)]
    best = {start: [(rules.faults, rules.acts or 0)]}
    while layer and graph.violation is None:
        if depth is not None and graph.depth >= depth:
            graph.is_whole = False
            break
        graph.depth += 1
        layer = _next_layer(graph, layer, best)
    return graph


def _next_layer(
    graph: Graph, layer: list[tuple[int, int, int]], best: dict[int, list[tuple[int, int]]]
) -> list[tuple[int, int, int]]:
    following = []
    for node, faults, acts in layer:
        if node not in graph.edges:
            graph.edges[node] = _edges(graph, node)
        for edge in graph.edges[node]:
            left = (faults - edge.fault, acts - edge.act)
            if min(left) < 0 or any(f >= left[0] and a >= left[1] for f, a in best.get(edge.target, ())):
                continue
            if edge.target not in best:
                graph._came_by[edge.target] = (node, edge)
                check = duplicates if graph.only_duplicates else broken
                if wrong := check(graph.at(edge.target)[0]):
                    graph.violation = Violation(tuple(wrong), graph.way_to(edge.target))
            if graph.violation is not None:
                return []
            best.setdefault(edge.target, []).append(left)
            following.append((edge.target, *left))
    return following


def _edges(graph: Graph, node: int) -> list[Edge]:
    rules = graph.rules
    cell, now = graph.at(node)
    found = [
        Edge(graph.node(cell, later), "time", name, everywhere=True) for name, later in _later(graph, now)
    ]
    for step in steps(cell, now, rules):
        if len(step.cell.hands) > rules.workers or len(step.cell.questions) > rules.reconcilers:
            continue
        if not graph.only_duplicates and (wrong := wrong_step(cell, step)):
            last = f"{step.who}: {step.name} -> {describe(step.cell, rules)}"
            graph.violation = Violation(tuple(wrong), (*graph.way_to(node), last))
        if step.arrow:
            graph.taken[cell.row.state, step.name, step.cell.row.state] += 1
        target = graph.node(canonical(step.cell, rules), now)
        found.append(_edge(target, step, rules))
    return found


def _edge(target: int, step: Step, rules: Rules) -> Edge:
    return Edge(target, step.who, step.name, step.fault, step.act and rules.acts is not None)


def _later(graph: Graph, now: Now) -> list[tuple[str, Now]]:
    later = [
        ("the window closes", now._replace(window_over=True)),
        ("the credential is changed", now._replace(account=1)),
    ]
    return [(name, then) for name, then in later if then != now and then in graph.nows]


def describe(cell: Cell, rules: Rules) -> str:
    """Return a cell in one line."""
    row, provider = cell.row, cell.provider
    words = [str(row.state), f"token {row.token}"]
    words += [f"ambiguous {row.ambiguous}"] if row.ambiguous else []
    flags = ("lease_over", "visible", "late", "suppressed", "proved", "marked")
    words += [flag for flag in flags if getattr(row, flag)]
    words += [f"not {flag}" for flag in ("fresh", "retained") if not getattr(row, flag)]
    words += [f"absent {row.absent}"] if row.absent else []
    for hand in cell.hands:
        place = "on the wire" if hand.on_wire else str(hand.answer)
        fence = " past its fence" if hand.is_before_wire and not hand.fence else ""
        words.append(f"[worker: token {hand.token or 'older'}, {_place(place)}{fence}]")
    words += [f"[question: {question.reply}]" for question in cell.questions]
    words += [f"[{len(provider.orphans)} request nobody waits for]"] if provider.orphans else []
    forgotten = " (forgotten)" if rules.can.replays and provider.known != provider.accepted else ""
    return ", ".join(words) + f" | provider took {provider.messages}{forgotten}"


def _place(word: str) -> str:
    return "before the wire" if word == "none" else word
