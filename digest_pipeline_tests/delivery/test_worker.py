"""The pull worker in this process: what it takes up, what it leaves alone, and how it ends."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from digest_pipeline.delivery.worker import Duty, Worked, Worker
from digest_pipeline.errors import EnvironmentMismatchError
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.operations.pause import Scope, pause, resume
from digest_pipeline_tests.harness.delivering import NEITHER, Desk, assert_once_each
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT, plant


def worker(desk: Desk, **changed: Any) -> Worker:
    """Return a worker for a desk's digest; it finds everything else in the ledger."""
    duty = Duty(desk.digest, desk.gateway, changed.pop("begin", lambda _: None))
    environment, witness = changed.pop("environment", ENVIRONMENT), changed.pop("witness", None)
    return Worker(desk.ledger, [duty], environment, witness, changed.pop("poll", 0.05))


def once(desk: Desk, **changed: Any) -> Worked:
    return asyncio.run(worker(desk, **changed).run(asyncio.Event(), once=True))


def until(desk: Desk, holds: Callable[[], object], *workers: Worker) -> list[Worked]:
    """Run workers until a condition holds, then stop them and return what each did."""

    async def work() -> list[Worked]:
        stop = asyncio.Event()
        tasks = [asyncio.create_task(one.run(stop)) for one in workers or (worker(desk),)]
        deadline = time.monotonic() + 60
        while not await asyncio.to_thread(holds):
            assert time.monotonic() < deadline, "the condition was not met in time"
            assert not any(task.done() for task in tasks), "a worker ended by itself"
            await asyncio.sleep(0.02)
        stop.set()
        return list(await asyncio.wait_for(asyncio.gather(*tasks), 30))

    return asyncio.run(work())


def test_it_sends_a_sealed_period_that_nobody_has_sent_and_again_nothing(open_desk):
    desk = open_desk(12)
    periods: list[str] = []
    assert once(desk, begin=periods.append).accepted == 12
    assert periods == ["2025-W10"]
    assert once(desk).accepted == 0
    assert desk.counts() == {"sent": 12}
    assert_once_each(desk, range(1, 13))
    assert {one.claimed_by.split("-")[0] for one in desk.attempts()} == {"worker"}


def test_it_comes_back_for_retries_without_being_told(open_desk):
    desk = open_desk(4, sending={"in_run_wait_seconds": 0}, retry={"base_seconds": 0.2, "cap_seconds": 0.4})
    desk.script(Fault.UNAVAILABLE_503, 2)
    until(desk, lambda: desk.counts() == {"sent": 4})
    assert_once_each(desk, range(1, 5))


def test_it_settles_what_a_dead_sender_left_unknown(open_desk):
    desk = open_desk(3)
    now, account = time.time_ns() // 1000, desk.gateway().account
    plant(
        desk.ledger,
        desk.manifest_ids[0],
        2,
        "claimed",
        account=account,
        claimed_at=now - 2,
        lease_ends=now - 1,
    )
    until(desk, lambda: desk.counts() == {"sent": 3})
    assert_once_each(desk, range(1, 4))


def test_two_workers_share_the_work_and_send_nothing_twice(open_desk):
    desk = open_desk(40, can=NEITHER, rate={"per_second": 200, "burst": 60})
    other = worker(desk)
    done = until(desk, lambda: desk.counts() == {"sent": 40}, worker(desk), other)
    assert sum(one.accepted for one in done) == 40
    assert_once_each(desk, range(1, 41))


def test_it_touches_nothing_that_is_paused_and_goes_on_by_itself_when_the_pause_ends(open_desk):
    desk = open_desk(3)
    scope = Scope(digest=desk.digest.name)
    pause(desk.ledger, scope, who="ann", reason="looking")
    assert once(desk).rounds == 0
    assert desk.counts() == {"pending": 3}
    resume(desk.ledger, scope, who="ann", reason="looked")
    assert once(desk).accepted == 3


def test_a_closed_window_holds_its_rows(open_desk):
    desk = open_desk(3)
    desk.close_window()
    assert once(desk).accepted == 0
    assert desk.counts() == {"pending": 3}


def test_where_sending_is_disabled_nothing_is_sent(open_desk):
    desk = open_desk(3)
    desk.change(enabled=False)
    assert once(desk).accepted == 0
    assert desk.sandbox.control.statistics()["arrivals"] == 0


def test_another_environments_ledger_ends_it_before_anything_is_sent(open_desk):
    desk = open_desk(3)
    with pytest.raises(EnvironmentMismatchError, match="'elsewhere'"):
        once(desk, environment="elsewhere")
    assert desk.sandbox.control.statistics()["arrivals"] == 0


def test_a_ledger_that_has_forgotten_what_this_host_saw_ends_it_before_anything_is_sent(open_desk, tmp_path):
    desk = open_desk(3)
    assert once(desk, witness=Witness(tmp_path, "ledger")).accepted == 3
    desk.sql("DELETE FROM attempt")  # as in a backup that is older than this host's memory
    with pytest.raises(EnvironmentMismatchError, match="forgotten attempts"):
        once(desk, witness=Witness(tmp_path, "ledger"))
    assert desk.sandbox.oracle().accepted_count() == 3


def test_a_manifest_that_was_changed_after_its_seal_is_left_alone_and_told(open_desk):
    desk = open_desk(3)
    desk.sql("UPDATE manifest_entry SET recipient = 'other@example.test' WHERE ordinal = 2")
    done = once(desk)
    assert "was changed after the seal" in done.refused["tiny_digest"]
    assert "@" not in done.refused["tiny_digest"]
    assert desk.counts() == {"pending": 3}


def test_a_refused_account_halts_it_and_it_asks_again_only_when_the_probe_is_due(open_desk):
    desk = open_desk(20)
    desk.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=10_000))
    made = worker(desk)
    looks: list[str] = []
    made.watch = looks.append
    done = until(desk, lambda: sum("halted" in look for look in looks) > 3, made)
    assert done[0].halted["tiny_digest"].startswith("account: 401")
    assert desk.sandbox.control.statistics()["arrivals"] <= desk.digest.sending.concurrency
    assert desk.counts() == {"pending": 20}

    desk.sandbox.control.clear_faults()
    # Whoever starts a worker may have mended the account: it tries one message at once, and goes on.
    until(desk, lambda: desk.counts() == {"sent": 20})
    assert_once_each(desk, range(1, 21))


def test_told_to_stop_it_settles_the_calls_under_way_and_releases_the_rest(open_desk):
    desk = open_desk(30, can=NEITHER, sending={"concurrency": 3, "lanes": 1, "timeout_seconds": 20})
    desk.sandbox.control.script(Rule(Fault.HELD_AFTER_ACCEPT, next=3))

    async def work() -> Worked:
        stop = asyncio.Event()
        task = asyncio.create_task(worker(desk).run(stop))
        await asyncio.to_thread(desk.sandbox.control.wait, accepted=3)
        stop.set()
        await asyncio.sleep(0)
        desk.sandbox.control.release()
        return await asyncio.wait_for(task, 30)

    done = asyncio.run(work())
    counts = desk.counts()
    assert set(counts) == {"sent", "pending"}, "nothing is left claimed, nothing became unknown"
    assert counts["sent"] == done.accepted < 30
    assert desk.sandbox.oracle().accepted_count() == done.accepted
    assert once(desk).accepted == 30 - done.accepted
    assert_once_each(desk, range(1, 31))


def test_told_to_stop_while_it_waits_it_ends_at_once(open_desk):
    desk = open_desk(1)
    made = worker(desk, poll=600.0)
    looks: list[str] = []
    made.watch = looks.append
    until(desk, lambda: any("looks every 600 s" in look for look in looks), made)
    assert desk.counts() == {"sent": 1}


def test_a_ledger_that_is_away_for_a_moment_does_not_end_it(open_desk, monkeypatch):
    desk = open_desk(3)
    made, looked = worker(desk), []
    look = made._look

    def away_twice(duty: Duty) -> Any:
        looked.append(duty)
        if len(looked) <= 2:
            raise OperationalError("SELECT 1", {}, Exception("away"))
        return look(duty)

    monkeypatch.setattr(made, "_look", away_twice)
    until(desk, lambda: desk.counts() == {"sent": 3}, made)
    assert_once_each(desk, range(1, 4))
