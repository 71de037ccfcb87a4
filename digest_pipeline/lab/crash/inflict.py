"""How a cell's fault is brought about. Each function says whether it has really happened.

A process is killed by itself at the point. For every other fault it stops itself there (SIGSTOP), so that
the harness can do the damage at exactly that moment, and then goes on (SIGCONT).
"""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import text

from digest_pipeline.faults import Point
from digest_pipeline.lab.crash.cells import ASKING, PAUSES, Engine, Harm
from digest_pipeline.lab.crash.period import PAST_THE_LEASE, key_of
from digest_pipeline.lab.crash.provider import Trouble
from digest_pipeline.lab.crash.record import wrong_instants
from digest_pipeline.lab.crash.recover import recover
from digest_pipeline.lab.crash.stage import Case
from digest_pipeline.lab.nursery import Child, End
from digest_pipeline.lab.time_shift import Clock

KILLED = End(signal=signal.SIGKILL)
STOPPED = End(signal=signal.SIGSTOP, stopped=True)

WRONG_BY = 600.0
"""Seconds by which a worker's clock jumps: several leases."""

OTHER_WRITER = 1.5
"""Seconds for which another writer keeps the only write lock of an embedded ledger."""

ERRORS = 6
"""Updates in a row that PostgreSQL refuses, deadlocks and serialization failures in turn."""

KEY_LIFETIME = 25 * 3600.0

# In the middle of the work where a point is passed more than once.
HITS = {
    Point.AFTER_GATE: 2,
    Point.AFTER_CLAIM_COMMIT: 2,
    Point.BEFORE_PROVIDER_CALL: 8,
    Point.DURING_PROVIDER_CALL: 8,
    Point.AFTER_PROVIDER_CALL: 8,
    Point.BEFORE_SETTLE_COMMIT: 2,
    Point.AFTER_SETTLE_COMMIT: 2,
}

# One that wakes after its lease shall find nothing else under way, so it is stopped at its first pass. (A
# second call spares us that a sender takes the pause for how long calls last.)
FIRST_HITS = {Point.DURING_PROVIDER_CALL: 2, Point.AFTER_PROVIDER_CALL: 2}


@dataclass(frozen=True, slots=True)
class Inflicted:
    """What came of it. ``hit``: the point was reached and the damage done; ``end``: how the process ended;
    ``lost_claims``: what it still brought back after others had settled it.
    """

    hit: bool
    end: str = ""
    note: str = ""
    wrong_instants: int = 0
    lost_claims: int = 0


def inflict(case: Case) -> Inflicted:
    """Run the period once, disturbed as its cell says."""
    cell = case.cell
    assert cell.point is not None
    assert cell.harm is not None
    if cell.point in ASKING:
        _make_doubts(case)
    if cell.harm is Harm.SETTLE_ERROR and cell.engine is Engine.POSTGRESQL:
        _prepare_refusals(case)
    hits = FIRST_HITS if cell.harm in PAUSES else HITS
    hit = hits.get(cell.point, 1)
    if cell.harm is Harm.KILL:
        child, _ = case.start(f"{cell.point}:kill:{hit}")
        end = child.wait()
        return Inflicted(end == KILLED, _word(end))
    child, clock = case.start(f"{cell.point}:stop:{hit}")
    end = child.wait()
    if end != STOPPED:
        return Inflicted(False, _word(end), f"the point was not reached: {child.said()}")
    return _HARMS[cell.harm](case, child, clock)


def _make_doubts(case: Case) -> None:
    """Do a first run that leaves deliveries of which nobody knows whether they were sent, both ways."""
    case.stage.provider.script(Trouble.LOST_ANSWER, [key_of(3), key_of(11)])
    case.stage.provider.script(Trouble.LOST_REQUEST, [key_of(5), key_of(13)])
    case.run()
    case.pass_time()


def go_on(child: Child) -> str:
    """Let a stopped process go on and return how it ended."""
    child.send(signal.SIGCONT)
    return _word(child.wait())


def _word(end: End) -> str:
    if end.stopped:
        return "stopped"
    return signal.Signals(end.signal).name if end.signal is not None else f"exit {end.code}"


def _pause(case: Case, child: Child, clock: Clock) -> Inflicted:
    if case.cell.engine is Engine.POSTGRESQL:
        # What the server itself does after the 120 s that the ledger's connections ask for; no sooner.
        case.stage.server.end_sessions(case.url, only_idle_in_transaction=True)
    elif _is_locked(case):
        # Nobody can write until it wakes: an embedded ledger has one writer.
        clock.shift(wall=PAST_THE_LEASE, running=PAST_THE_LEASE)
        end = go_on(child)
        case.pass_time()
        return Inflicted(True, end, "stopped with the only write lock: everybody waited for it")
    case.asleep.append(clock)
    recover(case)
    if case.cell.harm is Harm.PAUSE_PAST_KEY:
        case.pass_time(KEY_LIFETIME)
        case.stage.provider.forget_keys()
    case.asleep.remove(clock)
    end = go_on(child)
    return Inflicted(True, end, lost_claims=child.said().get("lost_claims", 0))


def _is_locked(case: Case) -> bool:
    with closing(sqlite3.connect(_file(case), timeout=0.2, isolation_level=None)) as conn:
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        conn.execute("ROLLBACK")
        return False


def _file(case: Case) -> str:
    return case.url.removeprefix("sqlite:///")


def _lose_connections(case: Case, child: Child, _: Clock) -> Inflicted:
    ended = case.stage.server.end_sessions(case.url)
    return Inflicted(ended > 0, go_on(child), f"{ended} sessions ended")


def _restart_database(case: Case, child: Child, _: Clock) -> Inflicted:
    case.stage.server.crash_and_restart()
    return Inflicted(True, go_on(child))


def _prepare_refusals(case: Case) -> None:
    """Have updates of deliveries counted by a sequence, which no rollback undoes, and refused below zero."""
    with case.ledger() as ledger, ledger.write() as conn:
        conn.execute(text("CREATE SEQUENCE lab_updates MINVALUE -1000 START 0"))
        conn.execute(text(_REFUSE))
        conn.execute(
            text(
                "CREATE TRIGGER lab_refuse BEFORE UPDATE ON delivery "
                "FOR EACH STATEMENT EXECUTE FUNCTION lab_refuse()"
            )
        )


_REFUSE = """
CREATE FUNCTION lab_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE number bigint := nextval('lab_updates');
BEGIN
    IF number < 0 AND number % 2 = 0 THEN
        RAISE EXCEPTION 'planted deadlock' USING ERRCODE = '40P01';
    ELSIF number < 0 THEN
        RAISE EXCEPTION 'planted serialization failure' USING ERRCODE = '40001';
    END IF;
    RETURN NULL;
END $$
"""


def _refuse_writes(case: Case, child: Child, _: Clock) -> Inflicted:
    if case.cell.engine is Engine.SQLITE:
        return _hold_the_lock(case, child)
    with case.ledger() as ledger:
        with ledger.write() as conn:
            conn.execute(text(f"SELECT setval('lab_updates', {-ERRORS - 1})"))
        end = go_on(child)
        with ledger.read() as conn:
            last = conn.execute(text("SELECT last_value FROM lab_updates")).scalar_one()
    return Inflicted(last > -ERRORS - 1, end, f"{min(ERRORS, last + ERRORS + 1)} updates refused")


def _hold_the_lock(case: Case, child: Child) -> Inflicted:
    """Keep the write lock, from the first moment that it is free, while the process wants it."""
    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(_file(case), timeout=0, isolation_level=None)) as conn:
            if not _take_the_lock(conn, ended):
                return
            held.set()
            time.sleep(OTHER_WRITER)
            conn.execute("ROLLBACK")

    locker = threading.Thread(target=hold)
    locker.start()
    held.wait(0.2)  # not while the process itself holds the lock at the point: then it is next
    end = go_on(child)
    hit = held.is_set()
    ended.set()
    locker.join()
    return Inflicted(hit, end)


def _take_the_lock(conn: sqlite3.Connection, ended: threading.Event) -> bool:
    # SQLite's own busy handler sleeps for up to 100 ms, and would seldom find the lock free.
    while not ended.is_set():
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            time.sleep(0.001)
        else:
            return True
    return False


def _fill_the_disk(case: Case, child: Child, _: Clock) -> Inflicted:
    disk = case.stage.small_disk
    disk.fill()
    end = go_on(child)
    disk.make_room()
    said = str(child.said().get("error", ""))
    return Inflicted("full" in said or "disk I/O" in said, end, said)


def _kill_the_provider(case: Case, child: Child, _: Clock) -> Inflicted:
    case.stage.provider.kill()
    child.send(signal.SIGCONT)
    case.stage.provider.start()
    return Inflicted(True, _word(child.wait()))


def _jump(case: Case, child: Child, clock: Clock) -> Inflicted:
    clock.shift(wall=WRONG_BY if case.cell.harm is Harm.CLOCK_AHEAD else -WRONG_BY)
    end = go_on(child)
    if case.cell.engine is Engine.SQLITE:
        if case.cell.harm is Harm.CLOCK_AHEAD:
            case.pass_time(WRONG_BY)  # what was put off then is due once the right clock has come so far
        return Inflicted(True, end, "the host's clock is the ledger's: what was written is off by as much")
    with case.ledger() as ledger:
        wrong = wrong_instants(ledger, slack=case.passed + 120)
    return Inflicted(True, end, wrong_instants=wrong)


_HARMS: dict[Harm, Callable[[Case, Child, Clock], Inflicted]] = {
    Harm.PAUSE: _pause,
    Harm.PAUSE_PAST_KEY: _pause,
    Harm.CONNECTION_LOST: _lose_connections,
    Harm.DATABASE_RESTART: _restart_database,
    Harm.SETTLE_ERROR: _refuse_writes,
    Harm.DISK_FULL: _fill_the_disk,
    Harm.PROVIDER_KILLED: _kill_the_provider,
    Harm.CLOCK_AHEAD: _jump,
    Harm.CLOCK_BEHIND: _jump,
}
