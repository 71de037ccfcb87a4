"""No world is stuck: from each there is a way, without faults or people, to everything final or held.

Two facts about one key's graph give it for any number of keys. What is in anybody's hand can always be
put down without taking anything new; so every worker and reconciler can be freed. And with nothing in
hand, a key can be brought to its end with one worker and one reconciler; so all keys can, in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from digest_pipeline.lab.model.cell import Cell
from digest_pipeline.lab.model.graph import Edge, Graph
from digest_pipeline.lab.model.invariants import is_settled


def stuck(graph: Graph) -> list[int]:
    """Return the nodes of a whole graph from which no such way leads; none is what is hoped for."""
    rules = graph.rules
    ended = [node for node in graph.edges if is_settled(*graph.at(node), rules)]
    idle = {node for node in graph.edges if _in_hand(graph.at(node)[0]) == (0, 0)}
    can_end = _leading_to(graph, ended, lambda after: max(_in_hand(after)) <= 1)
    can_idle = _leading_to(graph, idle, None)
    return sorted((idle - can_end) | (graph.edges.keys() - can_idle))


def _in_hand(cell: Cell) -> tuple[int, int]:
    return len(cell.hands), len(cell.questions)


def _leading_to(graph: Graph, goals: Iterable[int], allowed: Callable[[Cell], bool] | None) -> set[int]:
    """Return the nodes from which goals are reached by steps that may be taken, walking backwards."""
    sources: defaultdict[int, list[int]] = defaultdict(list)
    for node, edges in graph.edges.items():
        before = _in_hand(graph.at(node)[0])
        for edge in edges:
            if _is_spontaneous(edge):
                after = graph.at(edge.target)[0]
                puts_down = all(now <= was for now, was in zip(_in_hand(after), before, strict=True))
                if puts_down if allowed is None else allowed(after):
                    sources[edge.target].append(node)
    found = set(goals)
    waiting = list(found)
    while waiting:
        for node in sources[waiting.pop()]:
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _is_spontaneous(edge: Edge) -> bool:
    return not edge.fault and edge.who not in ("operator", "customer") and not edge.everywhere
