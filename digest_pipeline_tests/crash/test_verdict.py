"""The verdict is proven by planting each violation that it must find."""

from dataclasses import replace

import pytest

from digest_pipeline.lab.crash.verdict import KINDS, Record, Row, judge

CLEANED = Row("a", "cleaned", proof="accepted", cleaned_by="run-1")
HELD = Row("b", "unknown", held="no_evidence", has_content=True)
WAITS = Row("c", "retry", due_in=30.0, held="window_closed", has_content=True)
EMPTY = Row("d", "suppressed")
FAILED = Row("e", "failed", has_content=True)
GOOD = Record(
    expected=["a", "b", "c", "d", "e"],
    rows=[CLEANED, HELD, WAITS, EMPTY, FAILED],
    acceptances=[("a", "m1")],
    selected=6,
    excluded=1,
)


def with_row(row: Row, *accepted: str) -> Record:
    """The good record with one more customer."""
    acceptances = [*GOOD.acceptances, *((key, f"m-{key}") for key in accepted)]
    return replace(
        GOOD, expected=[*GOOD.expected, row.key], rows=[*GOOD.rows, row], acceptances=acceptances, selected=7
    )


def test_a_period_of_which_all_is_settled_held_or_stopped_holds():
    verdict = judge(GOOD)
    assert verdict.holds
    assert verdict.held == {"no_evidence": 1, "window_closed": 1}
    assert verdict.unresolved == 2
    assert verdict.states == {"cleaned": 1, "failed": 1, "retry": 1, "suppressed": 1, "unknown": 1}


def test_an_unknown_that_was_accepted_is_held_and_breaks_nothing():
    assert judge(replace(GOOD, acceptances=[("a", "m1"), ("b", "m2")])).holds


PLANTED = {
    "a second acceptance, whatever its message id": (
        {"duplicate", "silent_duplicate"},
        replace(GOOD, acceptances=[("a", "m1"), ("a", "m1")]),
    ),
    "a customer without an entry": (
        {"lost", "check"},
        replace(GOOD, rows=GOOD.rows[:-1], broken_checks={"manifest_accounts_for_everyone": 1}),
    ),
    "sent, and the provider knows nothing of it": (
        {"lost"},
        with_row(Row("x", "sent", proof="accepted", has_content=True)),
    ),
    "claimed for ever": ({"stuck"}, with_row(Row("x", "claimed", has_content=True))),
    "past its due time": ({"stuck"}, with_row(Row("x", "pending", due_in=-5.0, has_content=True))),
    "put off again and again": ({"stuck"}, with_row(Row("x", "unknown", due_in=30.0, has_content=True))),
    "an entry without a delivery": ({"invisible"}, with_row(Row("x", None))),
    "a delivery without an entry": (
        {"invisible", "lost"},
        with_row(Row("x", "failed", has_content=True, has_entry=False)),
    ),
    "waiting for nothing": ({"invisible", "stuck"}, with_row(Row("x", "retry", has_content=True))),
    "accepted under a key that nobody has": (
        {"invisible"},
        replace(GOOD, acceptances=[("a", "1"), ("?", "2")]),
    ),
    "cleaned and never accepted": (
        {"cleaned_without_proof", "lost"},
        with_row(Row("x", "cleaned", proof="accepted", cleaned_by="run-1")),
    ),
    "cleaned without a word of who did it": (
        {"cleaned_without_proof"},
        with_row(Row("x", "cleaned", proof="accepted"), "x"),
    ),
    "cleaned by half": (
        {"cleaned_without_proof"},
        with_row(replace(CLEANED, key="x", has_content=True), "x"),
    ),
    "content gone of what is not sent": (
        {"cleaned_without_proof"},
        with_row(Row("x", "unknown", held="no_evidence")),
    ),
    "content gone of a failure, and by no rule": ({"cleaned_without_proof"}, with_row(Row("x", "failed"))),
    "accepted, and called dead": ({"denied"}, with_row(Row("x", "dead", has_content=True), "x")),
    "a row of the source that is nowhere": ({"unaccounted"}, replace(GOOD, selected=9)),
    "a check of the pipeline's own": ({"check"}, replace(GOOD, broken_checks={"manifest_is_frozen": 1})),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_and_nothing_else(name):
    kinds, record = PLANTED[name]
    assert set(judge(record).violations) == kinds


def test_every_kind_of_violation_is_planted_above():
    assert {kind for kinds, _ in PLANTED.values() for kind in kinds} == set(KINDS)


def test_content_that_went_by_the_retention_rule_is_no_violation():
    assert judge(with_row(Row("x", "dead", cleaned_by="retention:dead"))).holds


def test_the_documented_exception_excuses_so_many_duplicates_and_only_if_the_pipeline_admits_them():
    twice = replace(
        GOOD,
        acceptances=[("a", "m1"), ("a", "m2")],
        admitted=["a"],
        broken_checks={"no_duplicate_sends": 1},
    )
    assert judge(twice, duplicates_excepted=1).holds
    assert judge(twice, duplicates_excepted=1).duplicates == ("a",)
    assert not judge(twice).holds
    unseen = replace(twice, admitted=[])
    assert set(judge(unseen, duplicates_excepted=1).violations) == {"silent_duplicate"}
