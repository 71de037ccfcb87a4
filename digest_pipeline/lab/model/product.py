"""The worlds of several keys, every interleaving of them: products of one key's graph, as numbers.

A world is one number: the cells of its keys in order (keys are interchangeable), the moment, and how many
faults and acts are left. Layers of worlds are arrays, and a step of all worlds of a layer is a few array
operations, so that tens of millions of worlds take minutes and eight bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from digest_pipeline.lab.model.graph import Graph

Numbers = npt.NDArray[np.int64]
CHUNK = 400_000
"""Worlds that are expanded at once: bounds the memory of their successors."""


@dataclass(slots=True)
class Worlds:
    """How far the worlds were explored. ``cut``: why not to the end."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    cut: str | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """A graph as arrays: the edges of a node stand in a row, from ``first[node]``."""

    first: Numbers
    target: Numbers
    faults: Numbers
    acts: Numbers
    hands: Numbers
    questions: Numbers
    later: tuple[tuple[int, ...], ...]
    """For each moment, those that may come next for all keys."""


def explore(graph: Graph, depth: int | None = None, most: int = 60_000_000) -> Worlds:
    """Take every step of every world, breadth first, to the end, to a depth, or until there are ``most``."""
    product = _Product(graph)
    done = Worlds()
    layer = seen = product.start()
    while layer.size:
        if depth is not None and done.depth >= depth:
            done.cut = f"at depth {depth}"
            break
        if seen.size > most:
            done.cut = f"at {most:,} worlds"
            break
        found = [product.after(layer[at : at + CHUNK], done) for at in range(0, layer.size, CHUNK)]
        layer = _without(np.unique(np.concatenate(found)), seen)
        # Two sorted runs: merged in linear time.
        seen = np.sort(np.concatenate((seen, layer)), kind="stable")
        done.depth += 1 if layer.size else 0
    done.states = int(seen.size)
    return done


def _without(candidates: Numbers, seen: Numbers) -> Numbers:
    places = np.searchsorted(seen, candidates)
    places[places == seen.size] = 0
    fresh: Numbers = candidates[seen[places] != candidates]
    return fresh


class _Product:
    def __init__(self, graph: Graph) -> None:
        self.rules = graph.rules
        self.tables = _tables(graph)
        self.cells, self.moments = len(graph.cells), len(graph.nows)
        self.most_acts = (self.rules.acts or 0) + 1
        self.most_faults = self.rules.faults + 1
        worlds = self.cells**self.rules.keys * self.moments * self.most_acts * self.most_faults
        if worlds >= 2**63:
            raise ValueError("so many keys of so many cells do not fit into one number")

    def start(self) -> Numbers:
        nothing = np.zeros((self.rules.keys, 1), dtype=np.int64)
        one = np.zeros(1, dtype=np.int64)
        return self._pack(nothing, one, one + self.rules.faults, one + (self.rules.acts or 0))

    def after(self, worlds: Numbers, done: Worlds) -> Numbers:
        """Return the worlds one step after these, each once."""
        cells, moment, faults, acts = self._unpack(worlds)
        found = [self._moments_later(cells, moment, faults, acts)]
        for key in range(self.rules.keys):
            # Of two keys in the same cell, one is enough to move.
            alike = cells[key] == cells[key - 1] if key else np.zeros(worlds.size, dtype=bool)
            found.append(self._steps_of(key, cells[:, ~alike], moment[~alike], faults[~alike], acts[~alike]))
        done.transitions += sum(each.size for each in found)
        return np.unique(np.concatenate(found))

    def _steps_of(self, key: int, cells: Numbers, moment: Numbers, faults: Numbers, acts: Numbers) -> Numbers:
        t = self.tables
        node = cells[key] * self.moments + moment
        count = t.first[node + 1] - t.first[node]
        world = np.repeat(np.arange(node.size), count)
        ends = np.cumsum(count)
        edge = np.arange(world.size) - np.repeat(ends - count, count) + t.first[node][world]
        target = t.target[edge]
        others = [other for other in range(self.rules.keys) if other != key]
        hands = t.hands[target] + sum(t.hands[cells[other]][world] for other in others)
        questions = t.questions[target] + sum(t.questions[cells[other]][world] for other in others)
        left, left_acts = faults[world] - t.faults[edge], acts[world] - t.acts[edge]
        possible = (
            (left >= 0)
            & (left_acts >= 0)
            & (hands <= self.rules.workers)
            & (questions <= self.rules.reconcilers)
        )
        after = cells[:, world[possible]]
        after[key] = target[possible]
        after.sort(axis=0)
        return self._pack(after, moment[world[possible]], left[possible], left_acts[possible])

    def _moments_later(self, cells: Numbers, moment: Numbers, faults: Numbers, acts: Numbers) -> Numbers:
        found = [np.zeros(0, dtype=np.int64)]
        for now, following in enumerate(self.tables.later):
            here = moment == now
            found += [
                self._pack(cells[:, here], moment[here] * 0 + n, faults[here], acts[here]) for n in following
            ]
        return np.concatenate(found)

    def _pack(self, cells: Numbers, moment: Numbers, faults: Numbers, acts: Numbers) -> Numbers:
        number = cells[0]
        for row in cells[1:]:
            number = number * self.cells + row
        packed: Numbers = (
            (number * self.moments + moment) * self.most_faults + faults
        ) * self.most_acts + acts
        return packed

    def _unpack(self, worlds: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        rest, acts = np.divmod(worlds, self.most_acts)
        rest, faults = np.divmod(rest, self.most_faults)
        rest, moment = np.divmod(rest, self.moments)
        rows = []
        for _ in range(self.rules.keys):
            rest, row = np.divmod(rest, self.cells)
            rows.append(row)
        return np.array(rows[::-1]), moment, faults, acts


def _tables(graph: Graph) -> Tables:
    moments = len(graph.nows)
    counts = np.zeros(len(graph.cells) * moments + 1, dtype=np.int64)
    own = {node: [e for e in edges if not e.everywhere] for node, edges in graph.edges.items()}
    for node, edges in own.items():
        counts[node + 1] = len(edges)
    edges = [edge for node in sorted(own) for edge in own[node]]
    later = [
        tuple(
            n
            for n, then in enumerate(graph.nows)
            if then > now and sum(a != b for a, b in zip(then, now, strict=True)) == 1
        )
        for now in graph.nows
    ]
    return Tables(
        np.cumsum(counts),
        np.array([edge.target // moments for edge in edges], dtype=np.int64),
        np.array([edge.fault for edge in edges], dtype=np.int64),
        np.array([edge.act for edge in edges], dtype=np.int64),
        np.array([len(cell.hands) for cell in graph.cells], dtype=np.int64),
        np.array([len(cell.questions) for cell in graph.cells], dtype=np.int64),
        tuple(later),
    )
