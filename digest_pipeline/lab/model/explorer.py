"""Exploring worlds to the end: the plan of what is explored, and what came of each.

Everything at once is too large, so the plan holds four kinds of worlds for each capability, which together
bring every pair of actors together:

- several keys, with all workers, reconcilers and faults, the cleaner, one act of a person, and a window;
- one key, one fault, and any number of acts (replays, resolutions, opt-outs, erasure, retention, closing);
- one key, one fault, one act, and a credential that is changed;
- one key, one fault, and a restored backup.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from digest_pipeline.lab.model import product
from digest_pipeline.lab.model.graph import Graph, Violation, build
from digest_pipeline.lab.model.liveness import stuck
from digest_pipeline.lab.model.product import Worlds
from digest_pipeline.lab.model.rules import Can, Rules


@dataclass(frozen=True, slots=True)
class Explored:
    """What came of one world. ``violation``: None when everything held in all that was reached."""

    rules: Rules
    cells: int
    worlds: Worlds
    seconds: float
    violation: Violation | None

    @property
    def exhausted(self) -> bool:
        """Whether every world of these rules was reached."""
        return self.violation is None and self.worlds.cut is None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        rules, worlds = self.rules, self.worlds
        return {
            "can": str(rules.can),
            "keys": rules.keys,
            "workers": rules.workers,
            "reconcilers": rules.reconcilers if rules.can.look_up else 0,
            "faults": rules.faults,
            "acts": "any" if rules.acts is None else rules.acts,
            "with": extras(rules),
            "cells_of_a_key": self.cells,
            "depth": worlds.depth,
            "states": worlds.states,
            "transitions": worlds.transitions,
            "seconds": round(self.seconds, 1),
            "space": "exhausted" if self.exhausted else f"cut {worlds.cut or 'at a violation'}",
            "broken": list(self.violation.broken) if self.violation else [],
            "trace": list(self.violation.trace) if self.violation else [],
        }


def extras(rules: Rules) -> list[str]:
    """Return what else happens in a world."""
    named = {
        "window closes": rules.window,
        "credential changes": rules.accounts,
        "backup restored": rules.restore,
    }
    return [name for name, happens in named.items() if happens] + [
        f"no {guard}" for guard in sorted(rules.without)
    ]


def plan(cans: tuple[Can, ...], keys: int, workers: int, faults: int) -> Iterator[Rules]:
    """Yield the worlds to explore, smallest first for each capability."""
    for can in cans:
        one = min(faults, 1)
        yield Rules(can, 1, workers, faults=one, acts=1, window=False, restore=True)
        yield Rules(can, 1, workers, faults=one, acts=1, accounts=True)
        yield Rules(can, 1, workers, faults=one, acts=None)
        yield Rules(can, keys, workers, faults=faults, acts=1)


def explore(rules: Rules, depth: int | None = None) -> Explored:
    """Explore one world: invariants and arrows of every step, then every interleaving, then liveness."""
    began = time.monotonic()
    with _without_collections():
        graph = build(rules, depth)
        worlds = Worlds(depth=graph.depth, states=len(graph.edges), cut="at a violation")
        violation = graph.violation
        if violation is None:
            worlds = product.explore(graph, depth)
            violation = _stuck(graph) if graph.is_whole else None
    return Explored(rules, len(graph.cells), worlds, time.monotonic() - began, violation)


def _stuck(graph: Graph) -> Violation | None:
    found = stuck(graph)
    if not found:
        return None
    shortest = min((graph.way_to(node) for node in found), key=len)
    return Violation((f"nothing leads to an end any more, from {len(found)} cells",), shortest)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Millions of small tuples, none in a cycle: the garbage collector would only walk them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
