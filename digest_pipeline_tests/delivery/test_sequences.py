"""Named sequences: what has been decided stays decided, whatever comes again, late, or from somewhere else."""

import shutil
import signal
import sqlite3
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy import make_url

from digest_pipeline.faults import Point
from digest_pipeline.lab.nursery import End, Job
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.ledger import doubts, reads, transitions
from digest_pipeline.ledger.claims import Claimer, claim_due
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.decisions import Order
from digest_pipeline.operations.late import allow_late
from digest_pipeline.operations.pause import Scope, pause, resume
from digest_pipeline.operations.rebind import Account, rebind
from digest_pipeline.operations.replay import replay
from digest_pipeline.operations.resolve import Verdict, resolve
from digest_pipeline.outcomes import Absent, Found
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline.reconciliation.settle import Answer, apply_answers
from digest_pipeline_tests.harness.delivering import (
    BOTH,
    LOOK_UP,
    NEITHER,
    REPLAYS,
    assert_once_each,
    frozen_desk,
    key_of,
)
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT, LABEL, dump, migrated

TAKEN, NOT_TAKEN = Fault.RESET_AFTER_ACCEPT, Fault.RESET_BEFORE_ACCEPT
ONE_PASS = {"sending": {"in_run_wait_seconds": 0}, "retry": {"base_seconds": 30, "cap_seconds": 30}}


def order(desk, *numbers):
    keys = tuple(key_of(number) for number in numbers)
    return Order(desk.digest, desk.digest.period(LABEL), keys, "ann", "the outage is over")


def requests(desk, number):
    return len([one for one in desk.sandbox.control.arrivals(key_of(number)) if one["route"] == "send"])


def redeliver(desk):
    """Let the same work come again in every way it can; nothing of the ledger or the provider may change."""
    before, arrived = dump(desk.ledger, "delivery"), desk.sandbox.control.statistics()["arrivals"]
    attempts = dump(desk.ledger, "attempt")
    desk.deliver(run_id="redelivered")
    who = Claimer("redelivered/s1", "sandbox", desk.gateway().account, 60_000_000)
    claimed = desk.ledger.transact(lambda conn: claim_due(conn, desk.manifest_ids[0], 100, who)).claimed
    assert claimed == ()
    with desk.ledger.write() as conn:  # an old work item that names rows and tokens of its own
        rows = [
            {"manifest_id": r.manifest_id, "ordinal": r.ordinal, "token": r.token + 1} for r in desk.rows()
        ]
        assert transitions.claim(conn, rows, 60_000_000, "redelivered/s1", "sandbox", "a1") == []
        late = [{**row, "message_id": "other", "proof": "accepted"} for row in rows]
        assert transitions.settle_sent(conn, late) == set()
    assert dump(desk.ledger, "delivery") == before
    assert dump(desk.ledger, "attempt") == attempts
    assert desk.sandbox.control.statistics()["arrivals"] == arrived


def test_retry_then_sent_then_redelivered_is_a_no_op(open_desk):
    desk = open_desk(3)
    desk.script(Fault.UNAVAILABLE_503, 2)
    desk.deliver()
    assert [a.outcome for a in desk.attempts(2)] == ["not_sent", "accepted"]
    redeliver(desk)
    assert_once_each(desk, range(1, 4))


@pytest.mark.parametrize(
    ("fault", "times", "state"),
    [(Fault.UNAVAILABLE_503, 3, "dead"), (Fault.INVALID_RECIPIENT_422, 1, "failed")],
)
def test_dead_then_replayed_then_redelivered_is_a_no_op(open_desk, fault, times, state):
    desk = open_desk(3)
    desk.script(fault, 2, attempts=times)
    desk.deliver()
    assert desk.row(2).state == state
    assert replay(desk.ledger, order(desk, 2), apply=True).changed == [key_of(2)]
    desk.deliver(run_id="run-2")
    assert desk.row(2).state == "sent"
    redeliver(desk)
    again = replay(desk.ledger, order(desk, 2), apply=True)
    assert again.refused == {key_of(2): "an attempt was accepted: a replay could be a second mail"}
    redeliver(desk)
    assert requests(desk, 2) == times + 1
    assert_once_each(desk, range(1, 4))


class Sending:
    """Processes that deliver one period."""

    def __init__(self, nursery, folder, url):
        self._nursery, self._folder, self._url, self._runs = nursery, folder, url, 0

    def start(self, fault=None):
        self._runs += 1
        run = f"run-{self._runs}"
        spec, report = str(self._folder / "tiny_digest.yaml"), str(self._folder / f"{run}.json")
        return self._nursery.start(Job(self._url, spec, LABEL, run, "s1", report, fault, only_deliver=True))


@pytest.mark.parametrize("can", [REPLAYS, LOOK_UP], ids=["replays", "look_up"])
def test_killed_before_and_resumed_after_the_end_of_the_window_it_is_held_and_then_sent_under_the_same_keys(
    tmp_path, ledger_url, sandbox, nursery, can
):
    sandbox.change(latency_ms=10)
    # Slow enough that the sender dies with some of them in hand and others not yet claimed.
    slowly = {"rate": {"per_second": 20, "burst": 10}, "sending": {"concurrency": 4}}
    with frozen_desk(tmp_path, ledger_url, sandbox, 24, can, **slowly) as desk:
        sending = Sending(nursery, tmp_path, ledger_url)
        keys = [row["operation_key"] for row in dump(desk.ledger, "manifest_entry")]
        assert sending.start(f"{Point.AFTER_PROVIDER_CALL}:kill:8").wait() == End(signal=signal.SIGKILL)
        offered = sandbox.oracle().accepted_count()
        desk.pass_time(91)
        desk.close_window()
        for _ in range(3):
            sending.start().report()
            desk.pass_time(60)
        assert sandbox.oracle().accepted_count() == offered
        with desk.ledger.read() as conn:
            held = reads.summarise(conn, desk.manifest_ids)
        assert held.states["claimed"] == 0
        assert held.states["pending"] > 0
        assert held.held["window_closed"] >= held.states["pending"]

        digest = desk.digest
        assert allow_late(desk.ledger, digest, digest.period(LABEL), who="ann", reason="outage", hours=24)
        for _ in range(4):
            sending.start().report()
            if desk.counts() == {"sent": 24}:
                break
            desk.pass_time(60)
        assert desk.counts() == {"sent": 24}
        assert [row["operation_key"] for row in dump(desk.ledger, "manifest_entry")] == keys
    assert_once_each(desk, range(1, 25))


def questions(desk):
    """Return the unknown rows as a round of look-ups reads them."""
    plan = desk.plan()
    with desk.ledger.read() as conn:
        return doubts.to_ask(
            conn, plan.manifest_ids, plan.gateway.name, plan.gateway.account, plan.resend_lifetime, 10
        )


def answer_late(desk, row, answer):
    """Let a round of look-ups that read ``row`` long ago write what it was answered."""
    one = [Answer(row, answer, row.now + 60_000_000)]
    return desk.ledger.transact(lambda conn: apply_answers(conn, desk.plan(), one, True))


def test_of_two_look_ups_of_one_unknown_a_stale_absence_changes_nothing(open_desk):
    """Both read the same unknown; one of them is slow, and the message has gone out meanwhile."""
    desk = open_desk(3, can=LOOK_UP, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.pass_time(60)
    (stale,) = questions(desk)
    assert desk.deliver(run_id="run-2").findings == {Finding.ABSENT_ONCE: 1}
    desk.pass_time(60)
    (staler,) = questions(desk)
    assert answer_late(desk, staler, Absent()) == {Finding.DISPROVED: 1}
    waiting = desk.row(2)
    assert waiting.state == "retry"
    for row in (stale, staler):
        answer_late(desk, row, Absent())
        assert desk.row(2) == waiting
    desk.deliver(run_id="run-4")
    sent = desk.row(2)
    assert sent.state == "sent"
    for row in (stale, staler):
        answer_late(desk, row, Absent())
        assert desk.row(2) == sent
    assert requests(desk, 2) == 2
    assert_once_each(desk, range(1, 4))


def test_a_stale_absence_says_nothing_about_a_newer_attempt(open_desk):
    """The absence was of the first request; the second one may have been accepted, and was."""
    desk = open_desk(3, can=LOOK_UP, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.script(TAKEN, 2, attempts=2)
    desk.deliver()
    desk.pass_time(60)
    desk.deliver(run_id="run-2")
    desk.pass_time(60)
    (stale,) = questions(desk)
    desk.deliver(run_id="run-3")
    desk.deliver(run_id="run-4")
    again = desk.row(2)
    assert (again.state, again.token > stale.token, again.absent_at) == ("unknown", True, None)
    answer_late(desk, stale, Absent())
    assert desk.row(2) == again
    desk.pass_time(60)
    assert desk.deliver(run_id="run-5").findings == {Finding.SENT: 1}
    assert requests(desk, 2) == 2
    assert_once_each(desk, range(1, 4))


def test_a_stale_hit_is_a_fact_all_the_same(open_desk):
    """Found by the slow look-up, after a person has written it off."""
    desk = open_desk(3, can=LOOK_UP, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.deliver()
    desk.pass_time(60)
    (stale,) = questions(desk)
    assert resolve(desk.ledger, order(desk, 2), Verdict.WRITTEN_OFF, apply=True).changed == [key_of(2)]
    (accepted,) = desk.sandbox.oracle().acceptances(key_of(2))
    answer_late(desk, stale, Found(accepted.message_id))
    assert (desk.row(2).state, desk.row(2).message_id) == ("sent", accepted.message_id)
    redeliver(desk)
    assert_once_each(desk, range(1, 4))


@contextmanager
def slow_answer(desk, ledger_url):
    """A sender whose first message was accepted and whose answer has not come; its lease is over.

    A person has said that it was not sent, which is wrong. Yields the sender and another process's desk.
    """
    desk.script(Fault.HELD_AFTER_ACCEPT, 1)
    desk.script(Fault.UNAVAILABLE_503, 1, attempts=3)
    slow = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=1)
    desk.sql("UPDATE delivery SET lease_ends = 1 WHERE lease_ends IS NOT NULL")
    with migrated(ledger_url) as others:
        other = desk.as_process(others)
        assert other.deliver(run_id="run-2").expired == 1
        assert resolve(others, order(desk, 1), Verdict.NOT_SENT, apply=True).changed == [key_of(1)]
        other.deliver(run_id="run-3")
        wait_until_dead(other)  # the slow sender itself may have the last of the attempts
        yield slow, other


def wait_until_dead(desk):
    deadline = time.monotonic() + 30
    while desk.row(1).state != "dead":
        assert time.monotonic() < deadline, desk.row(1).state
        time.sleep(0.02)


SLOW = {"can": NEITHER, "sending": {"timeout_seconds": 20}}


def test_a_late_acceptance_after_dead_makes_it_sent(open_desk, ledger_url):
    desk = open_desk(1, **SLOW)
    with slow_answer(desk, ledger_url) as (slow, _):
        desk.sandbox.control.release()
        assert slow.result().lost_claims == 1
    (accepted,) = desk.sandbox.oracle().acceptances()
    assert (desk.row(1).state, desk.row(1).message_id) == ("sent", accepted.message_id)
    assert desk.attempts(1)[0].late_outcome == "accepted"
    redeliver(desk)
    refused = replay(desk.ledger, order(desk, 1), apply=True).refused
    assert refused == {key_of(1): "an attempt was accepted: a replay could be a second mail"}
    assert_once_each(desk, range(1, 2))


def test_a_late_acceptance_after_a_replay_keeps_the_replay_from_being_sent(open_desk, ledger_url):
    desk = open_desk(1, **SLOW)
    with slow_answer(desk, ledger_url) as (slow, other):
        pause(other.ledger, Scope("tiny_digest"), who="ann", reason="one after the other")
        assert replay(other.ledger, order(desk, 1), apply=True).changed == [key_of(1)]
        assert desk.row(1).state == "retry"
        before = requests(desk, 1)
        desk.sandbox.control.release()
        assert slow.result().lost_claims == 1
        assert desk.row(1).state == "sent"
        resume(other.ledger, Scope("tiny_digest"), who="ann", reason="go on")
        other.deliver(run_id="run-4")
    assert requests(desk, 1) == before
    redeliver(desk)
    assert_once_each(desk, range(1, 2))


def test_a_late_acceptance_after_the_replay_was_sent_is_shown_as_the_second_mail_that_it_is(
    open_desk, ledger_url
):
    """A person's word against the facts, with a provider that knows no keys: nothing can undo it, all can see it."""
    desk = open_desk(1, **SLOW)
    with slow_answer(desk, ledger_url) as (slow, other):
        replay(other.ledger, order(desk, 1), apply=True)
        other.deliver(run_id="run-4")
        desk.sandbox.control.wait(accepted=2)
        desk.sandbox.control.release()
        assert slow.result().lost_claims == 1
    with desk.ledger.read() as conn:
        assert reads.duplicate_sends(conn, desk.manifest_ids) == [key_of(1)]
    assert [one.times for one in desk.sandbox.oracle().duplicates()] == [2]
    assert desk.row(1).state == "sent"


class Other:
    """The same provider as another gateway or another account of it."""

    def __init__(self, real, name=None, account=None):
        self._real, self.capabilities = real, real.capabilities
        self.name, self.account = name or real.name, account or real.account

    async def send(self, envelope):
        return await self._real.send(envelope)

    async def look_up(self, operation_key):
        return await self._real.look_up(operation_key)

    async def __aenter__(self):
        await self._real.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self._real.__aexit__(*error)


@pytest.mark.parametrize("can", [REPLAYS, LOOK_UP, BOTH], ids=["replays", "look_up", "both"])
@pytest.mark.parametrize(
    "change", [{"account": "another"}, {"name": "elsewhere"}], ids=["account", "gateway"]
)
def test_a_provider_that_was_changed_after_an_unknown_neither_repeats_nor_asks_about_it(
    open_desk, can, change
):
    """What never went out is sent by the new one; what is in doubt waits for the old one or a person."""
    desk = open_desk(4, can=can, **ONE_PASS)
    desk.sql("UPDATE delivery SET due_at = :far WHERE ordinal = 4", far=2**60)
    desk.script(TAKEN, 2)
    desk.script(NOT_TAKEN, 3)
    desk.deliver()
    assert desk.counts() == {"sent": 1, "unknown": 2, "pending": 1}
    desk.sql("UPDATE delivery SET due_at = 1 WHERE ordinal = 4")
    desk.pass_time(60)

    arrived = desk.sandbox.control.statistics()["arrivals"]
    for run in (2, 3):
        desk.deliver(Other(desk.gateway(), **change), run_id=f"run-{run}")
        desk.pass_time(60)
    assert desk.sandbox.control.statistics()["arrivals"] == arrived + 1  # the pending one
    for number in (2, 3):
        row = desk.row(number)
        assert (row.state, row.hold_reason, row.due_at) == ("unknown", "other_account", None)
    for run in range(4, 9):
        desk.deliver(run_id=f"run-{run}")  # the old one is back
        desk.pass_time(60)
    assert desk.counts() == {"sent": 4}
    assert_once_each(desk, range(1, 5))


@contextmanager
def backup_of(ledger_url, request, tmp_path):
    """Take a backup of the ledger now; yields a function that returns a database restored from it."""
    url = make_url(ledger_url)
    if url.get_backend_name() == "sqlite":
        backup = tmp_path / "backup.db"
        with (
            closing(sqlite3.connect(str(url.database))) as source,
            closing(sqlite3.connect(backup)) as target,
        ):
            source.backup(target)
        yield lambda: f"sqlite:///{shutil.copy(backup, tmp_path / 'restored.db')}"
    else:
        server = request.getfixturevalue("postgres_server")
        with server.database(template=ledger_url) as copy:
            yield lambda: copy


@pytest.mark.parametrize("can", [REPLAYS, LOOK_UP, NEITHER], ids=["replays", "look_up", "neither"])
def test_a_restored_backup_sends_again_only_what_evidence_says_was_not_sent(
    open_desk, ledger_url, request, tmp_path, can
):
    """The backup is from the middle of the period; the lost copy went on and sent half of the rest."""
    desk = open_desk(6, can=can, **ONE_PASS)
    desk.sql("UPDATE delivery SET due_at = :far WHERE ordinal > 2", far=2**60)
    desk.deliver()
    desk.ledger.engine.dispose()
    at = datetime.now(UTC)
    with backup_of(ledger_url, request, tmp_path) as restore:
        desk.sql("UPDATE delivery SET due_at = 1 WHERE ordinal IN (3, 4)")
        desk.deliver(run_id="lost-run")
        assert list(desk.sandbox.oracle().accepted_keys()) == [key_of(n) for n in range(1, 5)]
        with Ledger(restore()) as ledger:
            old = desk.as_process(ledger)
            assert old.counts() == {"sent": 2, "pending": 4}
            account = Account("sandbox", desk.gateway().account)
            done = rebind(
                ledger,
                ENVIRONMENT,
                who="ann",
                reason="the disk died",
                restored_from=at,
                accounts={"tiny_digest": account},
            )
            assert (done.in_doubt, done.unknown) == (1, 4)
            assert old.counts() == {"sent": 2, "unknown": 4}
            for run in range(5):
                old.deliver(run_id=f"run-{run}")
                old.pass_time(60)
            if can is NEITHER:
                assert old.counts() == {"sent": 2, "unknown": 4}
                assert {row.hold_reason for row in old.rows() if row.state == "unknown"} == {"no_evidence"}
                assert old.sandbox.oracle().accepted_count() == 4
                return
            assert old.counts() == {"sent": 6}
    assert_once_each(desk, range(1, 7))
