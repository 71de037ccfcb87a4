"""Every cell of the crash harness as data: what is broken, where, on which ledger, for which gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from digest_pipeline.faults import Point


class Engine(StrEnum):
    """What the ledger is on."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Can(StrEnum):
    """What the gateway can do about a message of which nobody knows whether it was sent."""

    REPLAYS = "replays"
    LOOK_UP = "look_up"
    NEITHER = "neither"


class Harm(StrEnum):
    """What happens at a point. All but ``kill`` happen while the process stands still there."""

    KILL = "kill"
    """SIGKILL."""
    PAUSE = "pause"
    """Stopped past its leases while others recover everything; then it goes on."""
    CONNECTION_LOST = "connection_lost"
    """The database ends all of its sessions."""
    DATABASE_RESTART = "database_restart"
    """PostgreSQL ends in immediate mode and starts again."""
    SETTLE_ERROR = "settle_error"
    """Its next writes meet deadlocks and serialization failures, or another writer that takes its time."""
    DISK_FULL = "disk_full"
    """Not one more byte fits beside the ledger."""
    PROVIDER_KILLED = "provider_killed"
    """The provider dies with requests under way, and is back a moment later on the same store."""
    CLOCK_AHEAD = "clock_ahead"
    """The worker's clock jumps ten minutes ahead."""
    CLOCK_BEHIND = "clock_behind"
    """The worker's clock jumps ten minutes back."""
    PAUSE_PAST_KEY = "pause_past_key"
    """Stopped until the provider has forgotten its idempotency key: only a documented exception."""


GROUPS = {
    Harm.KILL: "kill",
    Harm.PAUSE: "pause",
    Harm.CONNECTION_LOST: "database",
    Harm.DATABASE_RESTART: "database",
    Harm.SETTLE_ERROR: "database",
    Harm.DISK_FULL: "database",
    Harm.PROVIDER_KILLED: "provider",
    Harm.CLOCK_AHEAD: "clock",
    Harm.CLOCK_BEHIND: "clock",
    Harm.PAUSE_PAST_KEY: "pause",
}
"""Faults that a table shows together."""


class Sequence(StrEnum):
    """What an ambiguous send meets at its next try. Then its key expires, and a person replays everything."""

    THROTTLED = "ambiguous, 429, key expired, replay"
    UNAVAILABLE = "ambiguous, 503, key expired, replay"
    REFUSED = "ambiguous, 422, key expired, replay"
    WINDOW_CLOSED = "ambiguous, window closed, key expired, replay"


class Kind(StrEnum):
    """What a cell is about. A documented exception may end in a duplicate, and says so."""

    POINT = "point"
    SEQUENCE = "sequence"
    DOCUMENTED_EXCEPTION = "documented_exception"


@dataclass(frozen=True, slots=True)
class Cell:
    """One experiment. ``skip``: why it cannot be made (here, or at all)."""

    kind: Kind
    engine: Engine
    can: Can
    point: Point | None = None
    harm: Harm | None = None
    sequence: Sequence | None = None
    skip: str | None = None

    @property
    def name(self) -> str:
        """What a person types to find it again: ``kill at after_gate, sqlite, replays``."""
        what = self.sequence if self.sequence else f"{self.harm} at {self.point}"
        return f"{what}, {self.engine}, {self.can}"


@dataclass(frozen=True, slots=True)
class Facilities:
    """What this machine and the provider under test allow: why not, or None where it is allowed."""

    no_small_disk: str | None = None
    no_server_restart: str | None = None
    cans: frozenset[Can] = frozenset(Can)
    sequences: frozenset[Sequence] = frozenset(Sequence)
    forgets_keys: bool = True


ASKING = frozenset({Point.DURING_LOOK_UP, Point.BEFORE_EVIDENCE_COMMIT, Point.AFTER_EVIDENCE_COMMIT})
"""Points that are only passed when the provider is asked about a key."""

PAUSES = frozenset({Harm.PAUSE, Harm.PAUSE_PAST_KEY})

GRID = tuple(harm for harm in Harm if harm is not Harm.PAUSE_PAST_KEY)

_ONLY_ON = {
    Harm.CONNECTION_LOST: (Engine.POSTGRESQL, "an embedded database has no connection that could be lost"),
    Harm.DATABASE_RESTART: (Engine.POSTGRESQL, "an embedded database has no server that could restart"),
    Harm.DISK_FULL: (
        Engine.SQLITE,
        "the server's disk is its administrator's; its errors end a run likewise",
    ),
}


def all_cells(facilities: Facilities | None = None) -> list[Cell]:
    """Return every combination once; those that cannot be made have their reason in ``skip``."""
    given = facilities or Facilities()
    return [*_points(given), *_sequences(given), *_exceptions(given)]


def _points(given: Facilities) -> Iterator[Cell]:
    for point in Point:
        for harm in GRID:
            for engine in Engine:
                for can in Can:
                    kind = Kind.POINT
                    if is_exception(point, harm, can):
                        kind = Kind.DOCUMENTED_EXCEPTION
                    skip = _why_not(point, harm, engine, can) or _not_here(harm, can, given)
                    yield Cell(kind, engine, can, point, harm, skip=skip)


def _sequences(given: Facilities) -> Iterator[Cell]:
    for sequence in Sequence:
        for engine in Engine:
            for can in Can:
                skip = _not_here(None, can, given)
                if skip is None and sequence not in given.sequences:
                    skip = "the provider under test cannot be made to answer so"
                yield Cell(Kind.SEQUENCE, engine, can, sequence=sequence, skip=skip)


def _exceptions(given: Facilities) -> Iterator[Cell]:
    for engine in Engine:
        skip = _not_here(None, Can.REPLAYS, given)
        if skip is None and not given.forgets_keys:
            skip = "the provider under test cannot be made to forget a key"
        point, harm = Point.BEFORE_PROVIDER_CALL, Harm.PAUSE_PAST_KEY
        yield Cell(Kind.DOCUMENTED_EXCEPTION, engine, Can.REPLAYS, point, harm, skip=skip)


def is_exception(point: Point, harm: Harm, can: Can) -> bool:
    """Whether a cell is the exception that the guarantee names: paused between last check and wire.

    A look-up can prove that nothing was sent, and not that nothing will be.
    """
    return (point, harm, can) == (Point.BEFORE_PROVIDER_CALL, Harm.PAUSE, Can.LOOK_UP)


def _why_not(point: Point, harm: Harm, engine: Engine, can: Can) -> str | None:
    only = _ONLY_ON.get(harm)
    if only is not None and only[0] is not engine:
        return only[1]
    if point in ASKING and can is Can.REPLAYS:
        return "a key that replays answers settles the doubt: the provider is never asked"
    if point in ASKING and can is Can.NEITHER:
        return "a provider that cannot be asked is never asked: the row is held"
    if point is Point.AFTER_CLEANUP_COMMIT and harm in (Harm.SETTLE_ERROR, Harm.DISK_FULL):
        return "a run writes nothing to the ledger after this point"
    if (point, harm, engine) == (Point.INSIDE_CLEANUP, Harm.SETTLE_ERROR, Engine.SQLITE):
        return "the run has the only write lock at this point, and does nothing but commit after it"
    return None


def _not_here(harm: Harm | None, can: Can, given: Facilities) -> str | None:
    if can not in given.cans:
        return "the provider under test cannot do this"
    if harm is Harm.DISK_FULL:
        return given.no_small_disk
    if harm is Harm.DATABASE_RESTART:
        return given.no_server_restart
    return None


def chosen(
    cells: Iterable[Cell],
    *,
    full: bool = True,
    points: Iterable[str] = (),
    harms: Iterable[str] = (),
    engines: Iterable[str] = (),
    cans: Iterable[str] = (),
) -> list[Cell]:
    """Return the cells a person asks for; without ``full`` and without any choice the quick selection."""
    p, h, e, c = (frozenset(one) for one in (points, harms, engines, cans))
    asked = [
        cell
        for cell in cells
        if (not p or cell.point in p)
        and (not h or cell.harm in h)
        and (not e or cell.engine in e)
        and (not c or cell.can in c)
    ]
    return asked if full or p or h else [cell for cell in asked if is_quick(cell)]


def is_quick(cell: Cell) -> bool:
    """Whether a cell is one of some forty that show each point, fault, engine and capability at work."""
    if cell.kind is Kind.SEQUENCE:
        return _turn(list(Sequence).index(cell.sequence), cell) if cell.sequence else False
    if cell.kind is Kind.DOCUMENTED_EXCEPTION:
        return cell.engine is Engine.POSTGRESQL
    assert cell.point is not None
    assert cell.harm is not None
    if cell.harm is Harm.KILL:
        return cell.point in ASKING or _turn(list(Point).index(cell.point), cell)
    return cell.point is _QUICK_POINTS.get((cell.harm, cell.can)) and cell.skip is None


def _turn(number: int, cell: Cell) -> bool:
    """Engines and capabilities take turns: each point once, all of them often."""
    return number % 2 == list(Engine).index(cell.engine) and number % 3 == list(Can).index(cell.can)


_QUICK_POINTS = {
    (Harm.PAUSE, Can.REPLAYS): Point.AFTER_CLAIM_COMMIT,
    (Harm.PAUSE, Can.NEITHER): Point.BEFORE_PROVIDER_CALL,
    (Harm.CONNECTION_LOST, Can.LOOK_UP): Point.BEFORE_SETTLE_COMMIT,
    (Harm.CONNECTION_LOST, Can.NEITHER): Point.AFTER_CLAIM_COMMIT,
    (Harm.DATABASE_RESTART, Can.REPLAYS): Point.AFTER_PROVIDER_CALL,
    (Harm.DATABASE_RESTART, Can.NEITHER): Point.INSIDE_CLEANUP,
    (Harm.SETTLE_ERROR, Can.LOOK_UP): Point.AFTER_PROVIDER_CALL,
    (Harm.DISK_FULL, Can.REPLAYS): Point.AFTER_PROVIDER_CALL,
    (Harm.DISK_FULL, Can.NEITHER): Point.AFTER_GATE,
    (Harm.PROVIDER_KILLED, Can.REPLAYS): Point.BEFORE_PROVIDER_CALL,
    (Harm.PROVIDER_KILLED, Can.LOOK_UP): Point.DURING_PROVIDER_CALL,
    (Harm.CLOCK_AHEAD, Can.NEITHER): Point.AFTER_CLAIM_COMMIT,
    (Harm.CLOCK_BEHIND, Can.REPLAYS): Point.BEFORE_PROVIDER_CALL,
}
