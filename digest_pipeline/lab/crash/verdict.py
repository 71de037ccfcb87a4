"""What must hold of a period after everything: a pure decision over what was read of it.

The provider's own record of what it accepted is the judge; the ledger is the accused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from digest_pipeline.states import CLAIMABLE, DEAD_LETTERS, REACHED, STOPPED, UNSETTLED, State


@dataclass(frozen=True, slots=True)
class Row:
    """One customer's delivery as the ledger has it. ``state`` None: there is no delivery.

    ``due_in``: seconds until its due time, by the ledger's clock; None without one. ``held``: why it is
    not to go by itself.
    """

    key: str
    state: str | None
    due_in: float | None = None
    held: str | None = None
    proof: str | None = None
    cleaned_by: str | None = None
    has_content: bool = False
    has_entry: bool = True


@dataclass(frozen=True, slots=True)
class Record:
    """What was read when all was over. ``expected``: the keys of everybody the source wants reached or
    accounted for; ``excluded``: how many others it named. ``broken_checks``: the pipeline's own asset
    checks that do not hold, with how many deliveries break them; ``admitted``: keys it knows were sent twice.
    """

    expected: Sequence[str]
    rows: Sequence[Row]
    acceptances: Sequence[tuple[str, str]]
    selected: int = 0
    excluded: int = 0
    broken_checks: Mapping[str, int] = field(default_factory=dict)
    admitted: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, by kind, with the keys concerned; and what is merely so."""

    violations: Mapping[str, tuple[str, ...]]
    states: Mapping[str, int]
    held: Mapping[str, int]
    duplicates: tuple[str, ...]
    unresolved: int

    @property
    def holds(self) -> bool:
        """Whether every invariant does."""
        return not self.violations

    def count(self, kind: str) -> int:
        """Return how many keys break an invariant."""
        return len(self.violations.get(kind, ()))

    def as_data(self, most: int | None = None) -> dict[str, Any]:
        """Return the verdict as plain data, with at most ``most`` keys of each kind of violation."""
        return {
            "duplicates": len(self.duplicates),
            "lost": self.count("lost"),
            "stuck": self.count("stuck"),
            "invisible": self.count("invisible"),
            "cleaned_without_proof": self.count("cleaned_without_proof"),
            "unresolved": self.unresolved,
            "held": dict(self.held),
            "states": dict(self.states),
            "violations": {kind: list(keys)[:most] for kind, keys in self.violations.items()},
        }


KINDS = {
    "duplicate": "the provider accepted more than one message under the key",
    "lost": "neither accepted nor in a state in which anybody would see that it was not",
    "stuck": "after recovery, in which its due time passed, neither final nor held for a person",
    "invisible": "no state, no manifest entry, or waiting without a due time and without a reason",
    "cleaned_without_proof": "its generated rows are gone, or called so, and the provider never accepted it",
    "denied": "the provider accepted it and the ledger would send it again, or calls it unsent",
    "unaccounted": "rows of the customer source that are neither entries nor excluded",
    "silent_duplicate": "sent twice, and the pipeline's own check does not say so",
    "check": "one of the pipeline's own checks does not hold",
}
"""Every invariant by its name."""


def judge(record: Record, *, duplicates_excepted: int = 0) -> Verdict:
    """Return the verdict. ``duplicates_excepted``: as many duplicates are the documented exception."""
    accepted = Counter(key for key, _ in record.acceptances)
    duplicates = tuple(sorted(key for key, times in accepted.items() if times > 1))
    broken: dict[str, set[str]] = {kind: set() for kind in KINDS}
    if len(duplicates) > duplicates_excepted:
        broken["duplicate"] |= set(duplicates)
    broken["silent_duplicate"] |= set(duplicates) - set(record.admitted)
    known = {row.key for row in record.rows if row.has_entry}
    broken["lost"] |= set(record.expected) - known
    broken["invisible"] |= set(accepted) - known
    for row in record.rows:
        for kind in _of_row(row, row.key in accepted):
            broken[kind].add(row.key)
    if record.selected != len(record.expected) + record.excluded:
        broken["unaccounted"].add(
            f"{record.selected} selected, {len(record.expected)} + {record.excluded} named"
        )
    excused = {"no_duplicate_sends"} if duplicates and len(duplicates) <= duplicates_excepted else set()
    broken["check"] |= set(record.broken_checks) - excused
    return Verdict(
        violations={kind: tuple(sorted(keys)) for kind, keys in broken.items() if keys},
        states=dict(sorted(Counter(row.state or "none" for row in record.rows).items())),
        held=dict(sorted(Counter(row.held for row in record.rows if _is_held(row) and row.held).items())),
        duplicates=duplicates,
        unresolved=sum(row.state in UNSETTLED for row in record.rows),
    )


def _is_held(row: Row) -> bool:
    return row.held is not None and row.state in UNSETTLED


def _of_row(row: Row, accepted: bool) -> list[str]:
    """Return the invariants that one row breaks."""
    broken = []
    if row.state is None or not row.has_entry:
        broken.append("invisible")
    if row.state in REACHED and not accepted:
        broken.append("lost")
    if accepted and row.state in CLAIMABLE | DEAD_LETTERS:
        broken.append("denied")
    if _is_stuck(row):
        broken.append("stuck")
    if row.state in CLAIMABLE | {State.UNKNOWN} and row.due_in is None and row.held is None:
        broken.append("invisible")
    if _is_cleaned_without_proof(row, accepted):
        broken.append("cleaned_without_proof")
    return broken


def _is_stuck(row: Row) -> bool:
    # Not by its due time alone: a row that is put off again and again never comes to be past it.
    return row.state == State.CLAIMED or (row.state in UNSETTLED and row.held is None)


def _is_cleaned_without_proof(row: Row, accepted: bool) -> bool:
    if row.state == State.CLEANED:
        return not accepted or row.proof is None or row.cleaned_by is None or row.has_content
    if row.state is None or row.state == State.SUPPRESSED or row.has_content:
        return False
    by_rule = (row.cleaned_by or "").startswith("retention:")
    return not (by_rule and row.state in STOPPED)
