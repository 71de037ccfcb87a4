"""Every interleaving holds, within the suite's bounds; and with any one guard gone, some does not."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from digest_pipeline.lab.command import lab
from digest_pipeline.lab.model import product
from digest_pipeline.lab.model.explorer import explore
from digest_pipeline.lab.model.graph import build
from digest_pipeline.lab.model.invariants import ONCE
from digest_pipeline.lab.model.liveness import stuck
from digest_pipeline.lab.model.row import Now
from digest_pipeline.lab.model.rules import Can, Guard, Rules
from digest_pipeline.states import TRANSITIONS, State

ONE_KEY = {
    "replays": Rules(Can.REPLAYS, acts=1, faults=1),
    "look_up": Rules(Can.LOOK_UP, acts=1, faults=0),
    "look_up, faults": Rules(Can.LOOK_UP, acts=0, faults=2, accounts=True),
    "neither": Rules(Can.NEITHER, acts=2, faults=2),
    "both": Rules(Can.BOTH, acts=0, faults=1, window=False),
    "restored": Rules(Can.NEITHER, acts=2, faults=1, restore=True),
    "restored, replays": Rules(Can.REPLAYS, acts=1, faults=0, accounts=True, restore=True),
    "restored, look_up": Rules(Can.LOOK_UP, acts=1, faults=0, reconcilers=1, window=False, restore=True),
}
TWO_KEYS = [
    Rules(Can.REPLAYS, keys=2, acts=0),
    Rules(Can.LOOK_UP, keys=2, acts=0, window=False),
    Rules(Can.NEITHER, keys=2, acts=1),
]
CAUGHT_BY = {
    Guard.TOKEN: Rules(Can.NEITHER, acts=1, faults=0),
    Guard.STICKY_AMBIGUITY: Rules(Can.REPLAYS, acts=0, faults=2),
    Guard.LEASE_TO_UNKNOWN: Rules(Can.LOOK_UP, acts=0, faults=1),
    Guard.CLAIM_BEFORE_CALL: Rules(Can.NEITHER, acts=0, faults=0),
    Guard.ACCOUNT: Rules(Can.REPLAYS, acts=0, faults=0, accounts=True),
    Guard.KEY_LIFETIME: Rules(Can.REPLAYS, acts=0, faults=0),
    Guard.VISIBILITY: Rules(Can.LOOK_UP, acts=0, faults=0),
    Guard.TWO_ABSENCES: Rules(Can.LOOK_UP, acts=0, faults=1),
    Guard.DOUBT_AFTER_RESTORE: Rules(Can.NEITHER, acts=1, faults=0, restore=True),
}
"""Worlds in which taking the guard away lets a customer have two mails."""


@pytest.fixture(scope="module")
def graphs():
    return {name: build(rules) for name, rules in ONE_KEY.items()}


@pytest.mark.slow
def test_one_key_with_everybody_holds_in_every_interleaving(graphs):
    for name, graph in graphs.items():
        assert graph.violation is None, name
        assert graph.is_whole


@pytest.mark.slow
def test_from_every_cell_some_way_without_faults_or_people_leads_to_an_end(graphs):
    for name, graph in graphs.items():
        assert stuck(graph) == [], name


@pytest.mark.slow
@pytest.mark.parametrize("rules", TWO_KEYS, ids=lambda rules: str(rules.can))
def test_two_keys_two_workers_and_two_faults_are_exhausted(rules):
    explored = explore(rules)
    assert explored.violation is None
    assert explored.exhausted
    assert explored.worlds.states > 80_000


@pytest.mark.slow
def test_every_step_of_the_model_is_an_arrow_of_the_table_and_every_arrow_is_taken(graphs):
    table = {(source, arrow.name, arrow.target) for arrow in TRANSITIONS for source in arrow.sources}
    taken = {step for graph in graphs.values() for step in graph.taken}
    assert taken <= table
    assert {name for _, name, _ in taken} == {arrow.name for arrow in TRANSITIONS}
    assert table == taken, "from each of its sources"


@pytest.mark.parametrize("guard", sorted(CAUGHT_BY))
def test_without_any_one_guard_some_customer_is_sent_to_twice(guard):
    rules = replace(CAUGHT_BY[guard], without=frozenset({guard}))
    found = build(rules, only_duplicates=True).violation
    assert found is not None
    assert found.broken == (ONCE,)
    assert "took 2" in found.trace[-1]
    assert build(replace(rules, without=frozenset())).violation is None


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        (Guard.PROOF, "nothing is cleaned without the proof that is asked for"),
        (Guard.SUPPRESSION_AT_CLAIM, "nothing goes to somebody who had opted out before it was claimed"),
    ],
)
def test_without_these_guards_no_one_is_sent_to_twice_but_something_else_breaks(guard, words):
    found = build(Rules(Can.NEITHER, acts=1, faults=0, without=frozenset({guard}))).violation
    assert found is not None
    assert words in found.broken


def test_the_documented_exception_a_pause_past_the_fence_does_lead_to_a_duplicate():
    for can in (Can.LOOK_UP, Can.REPLAYS):
        rules = Rules(can, acts=0, faults=0, without=frozenset({Guard.FENCE}))
        found = build(rules, only_duplicates=True).violation
        assert found is not None
        assert any("past its fence" in line for line in found.trace)
        assert "took 2" in found.trace[-1]


def test_a_pause_past_the_fence_is_harmless_where_nothing_is_ever_sent_again():
    rules = Rules(Can.NEITHER, acts=0, faults=2, without=frozenset({Guard.FENCE}))
    assert build(rules, only_duplicates=True).violation is None


def test_a_person_who_says_not_sent_of_what_was_causes_the_duplicate_that_the_docs_warn_of():
    rules = Rules(Can.NEITHER, acts=1, faults=0, without=frozenset({Guard.TRUTH}))
    found = build(rules, only_duplicates=True).violation
    assert found is not None
    assert any(line.startswith("operator: disprove_unknown") for line in found.trace)


def test_the_product_of_one_key_has_as_many_worlds_as_its_graph_has_ways_to_be():
    rules = Rules(Can.REPLAYS, acts=0, faults=0, window=False)
    graph = build(rules)
    assert product.explore(graph).states == len(graph.edges)


def test_the_product_of_two_keys_is_what_stepping_both_by_hand_gives():
    rules = Rules(Can.NEITHER, keys=2, acts=0, faults=1, workers=2)
    graph = build(rules)
    assert product.explore(graph).states == len(_by_hand(graph, rules))


def _by_hand(graph, rules):
    start: tuple[tuple[int, ...], Now, int] = ((0, 0), graph.nows[0], rules.faults)
    seen, waiting = {start}, [start]
    while waiting:
        cells, now, faults = waiting.pop()
        for place in (0, 1):
            for edge in graph.edges.get(graph.node(graph.cells[cells[place]], now), ()):
                target, then = divmod(edge.target, len(graph.nows))
                other = cells[1 - place]
                both = (graph.cells[target], graph.cells[other])
                if faults < edge.fault or sum(len(cell.hands) for cell in both) > rules.workers:
                    continue
                after = tuple(sorted((cells[place] if edge.everywhere else target, other)))
                world = (after, graph.nows[then], faults - edge.fault)
                if world not in seen:
                    seen.add(world)
                    waiting.append(world)
    return seen


def test_a_search_that_is_cut_says_so():
    explored = explore(Rules(Can.REPLAYS, keys=2, acts=0), depth=5)
    assert explored.to_json()["space"] == "cut at depth 5"
    assert explored.to_json()["depth"] == 5
    assert not explored.exhausted


def test_the_command_prints_every_world_and_ends_well_when_all_holds():
    arguments = ["explore", "--keys", "1", "--workers", "1", "--faults", "1", "--can", "neither", "--json"]
    ran = CliRunner().invoke(lab, arguments)
    assert ran.exit_code == 0, ran.output
    printed = json.loads(ran.stdout)
    assert printed["ok"]
    assert printed["exhausted"]
    assert all(world["states"] > 100 for world in printed["worlds"])
    assert all(world["space"] == "exhausted" for world in printed["worlds"])


def test_a_cell_is_described_in_one_line():
    graph = build(Rules(Can.REPLAYS, acts=0, faults=0))
    lines = [line for node in graph.edges for line in graph.way_to(node)]
    assert all("\n" not in line for line in lines)
    assert any(str(State.UNKNOWN) in line for line in lines)
    assert graph.at(0)[1] == Now()
