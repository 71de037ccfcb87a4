"""Somebody's customers got it twice. Here they get it once, whatever is restarted, repeated or restored."""

import shutil
import signal
import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import event, make_url

from digest_pipeline.errors import EnvironmentMismatchError
from digest_pipeline.faults import Point
from digest_pipeline.lab.nursery import End
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.operations.rebind import rebind
from digest_pipeline.operations.replay import replay
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline_tests.cases.stage import (
    NAMED,
    Workers,
    order,
    provider_that_says,
    sends,
    shell_before,
    wait_until,
)
from digest_pipeline_tests.harness.delivering import (
    LOOK_UP,
    NEITHER,
    REPLAYS,
    assert_once_each,
    empty_desk,
    frozen_desk,
    key_of,
    match,
    sending_spec,
)
from digest_pipeline_tests.harness.ledgers import (
    ENVIRONMENT,
    customer,
    dump,
    migrated,
    tiny_source,
    write_customers,
)
from digest_pipeline_tests.harness.raw_http import answer, named

KILLED = End(signal=signal.SIGKILL)
# Where nothing depends on the engine.
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
# Where threads of one process show the same on both, and commands take long to start.
on_postgresql = pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)


def test_a_restarted_run_has_the_same_keys_and_repeats_nothing(tmp_path, ledger_url, sandbox, nursery):
    """DUP-01: another run, another process, another ledger and manifest: the keys are the same."""
    match(sandbox, REPLAYS)
    sandbox.change(latency_ms=300)
    fields = {"tenants": {"mode": "column"}, "first_period": "2020-W01", "sending": {"concurrency": 1}}
    digest = sending_spec(tmp_path, sandbox, REPLAYS, **fields)
    tiny_source(tmp_path, 0).close()
    write_customers(tmp_path, [customer(n, tenant="t1", orders=("2020-12-30",)) for n in range(1, 4)])
    expected = {f"tiny_digest:2020-W53:t1/customer-00{n}" for n in range(1, 4)}
    with migrated(ledger_url) as ledger:
        with ledger.write() as conn:  # a manifest of something else before it: other row ids
            conn.exec_driver_sql(
                "INSERT INTO manifest (digest, period, tenant, state, build_token, key_version, time_zone, "
                "period_start_at, period_end_at, window_opens_at, window_closes_at, selected_at, freezing_run_id) "
                "VALUES ('other', 'p', 't', 'building', 'x', 1, 'UTC', 1, 2, 1, 2, 1, 'run-0')"
            )
        workers = Workers(nursery, tmp_path, ledger_url, "2020-W53")
        assert workers.start(f"{Point.BEFORE_PROVIDER_CALL}:kill:3").wait() == KILLED
        assert sandbox.oracle().accepted_count() == 2
        sent = [row for row in dump(ledger, "delivery") if row["state"] == "sent"]
        with ledger.write() as conn:
            conn.exec_driver_sql("UPDATE delivery SET lease_ends = 1 WHERE lease_ends IS NOT NULL")
        workers.start(only_deliver=True).report()
        after = dump(ledger, "delivery")
        assert [row["state"] for row in after] == ["sent"] * 3
        assert all(row in after for row in sent)
        assert {row["operation_key"] for row in dump(ledger, "manifest_entry")} == expected
    assert set(sandbox.oracle().accepted_keys()) == expected
    assert list(sandbox.oracle().duplicates()) == []
    assert digest.name == "tiny_digest"


def test_a_group_that_is_tried_again_repeats_only_the_one_that_failed(open_desk):
    """DUP-03: fifteen retries of the whole group."""
    slowly = {"base_seconds": 30, "cap_seconds": 30, "max_attempts": 20}
    desk = open_desk(5, retry=slowly, sending={"in_run_wait_seconds": 0})
    desk.script(Fault.UNAVAILABLE_503, 5, attempts=15)
    for run in range(15):
        desk.deliver(run_id=f"run-{run}")
        desk.pass_time(31)
    assert desk.counts() == {"sent": 4, "retry": 1}
    assert [len(sends(desk, n)) for n in range(1, 6)] == [1, 1, 1, 1, 15]
    desk.deliver(run_id="run-15")
    assert desk.counts() == {"sent": 5}
    assert_once_each(desk, range(1, 6))


def test_a_sender_that_is_not_authorised_leaves_what_was_accepted_as_sent(open_desk):
    """DUP-06: three runs of one batch whose second message the provider refuses for its sender."""
    desk = open_desk(3, can=NEITHER, sending={"concurrency": 1, "lanes": 1})
    accepted, refused = answer(200, b'{"id": "m-1"}'), answer(422, named("domain_not_verified"))
    with provider_that_says(accepted, refused) as server:
        halted = [desk.deliver(desk.gateway(url=server.url), run_id=f"run-{n}").halted for n in range(3)]
    assert halted == ["account: 422 domain_not_verified"] * 3
    first, *others = desk.rows()
    assert (first.state, first.message_id, first.attempts) == ("sent", "m-1", 1)
    assert {(row.state, row.attempts) for row in others} == {("pending", 0)}
    keys = [request.split(b"X-Operation-Key: ")[1].split(b"\r\n")[0].decode() for request in server.requests]
    assert keys.count(key_of(1)) == 1
    assert len(keys) == 4  # the accepted one, the refused one, and one probe for each later run


def test_a_connection_that_ends_behind_a_clear_answer_changes_nothing_about_it(open_desk):
    """DUP-09, for HTTP: the tear-down of a connection is no part of the verdict."""
    desk = open_desk(3, can=NEITHER, sending={"concurrency": 1, "lanes": 1})
    with provider_that_says(answer(200, b'{"id": "m"}', "Connection: close\r\n")) as server:
        assert desk.deliver(desk.gateway(url=server.url)).accepted == 3
        assert desk.deliver(desk.gateway(url=server.url), run_id="run-2").accepted == 0
    assert desk.counts() == {"sent": 3}
    assert len(server.requests) == 3


def jammed(ledger_url, desk):
    """Return a ledger whose next two settlements fail, and the errors of a busy file as they come."""
    ledger = Ledger(ledger_url)
    errors: list[str] = []
    event.listen(
        ledger.engine, "handle_error", lambda context: errors.append(str(context.original_exception))
    )
    if desk.ledger.is_postgresql:
        # A sequence is not rolled back: that is how the trigger counts.
        desk.sql("CREATE SEQUENCE tries")
        desk.sql(
            "CREATE FUNCTION jam() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') <= 2 "
            "THEN RAISE EXCEPTION 'jammed' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$"
        )
        desk.sql("CREATE TRIGGER jam BEFORE INSERT ON attempt FOR EACH ROW EXECUTE FUNCTION jam()")
    else:
        event.listen(ledger.engine, "connect", lambda conn, _: conn.execute("PRAGMA busy_timeout = 50"))
    return ledger, errors


def test_only_the_write_is_repeated_when_a_settlement_meets_a_deadlock_twice(open_desk, ledger_url):
    """DUP-12: a deadlock on PostgreSQL, a busy file on SQLite."""
    desk = open_desk(1, can=NEITHER)
    desk.sandbox.control.script(Rule(Fault.HELD_AFTER_ACCEPT, next=1))
    ledger, errors = jammed(ledger_url, desk)
    with ledger:
        run = desk.as_process(ledger).deliver_meanwhile()
        desk.sandbox.control.wait(accepted=1)
        if desk.ledger.is_postgresql:
            desk.sandbox.control.release()
        else:
            with desk.ledger.write():
                desk.sandbox.control.release()
                wait_until(lambda: len(errors) >= 2)
        assert run.result().accepted == 1
    if desk.ledger.is_postgresql:
        assert desk.sql("SELECT last_value FROM tries")[0].last_value == 3
    (accepted,) = desk.sandbox.oracle().acceptances()
    assert (desk.row(1).state, desk.row(1).message_id) == ("sent", accepted.message_id)
    assert len(sends(desk, 1)) == len(desk.attempts(1)) == 1


def test_a_batch_that_takes_longer_than_a_lease_is_shared_and_not_repeated(open_desk, ledger_url):
    """DUP-14: a slow rate, a short lease, and a second worker that looks for work all the while."""
    desk = open_desk(60, can=NEITHER, rate={"per_second": 8, "burst": 3})
    desk.change(lease_seconds=5, timeout_seconds=1)
    with migrated(ledger_url) as here, migrated(ledger_url) as there:
        one = desk.as_process(here).deliver_meanwhile(run_id="run-1")
        two = desk.as_process(there).deliver_meanwhile(run_id="run-2")
        assert one.result().accepted + two.result().accepted == 60
    assert desk.counts() == {"sent": 60}
    assert desk.sandbox.control.statistics()["arrivals"] == 60
    assert_once_each(desk, range(1, 61))


def test_ticks_after_a_late_answer_send_nothing_and_a_look_up_finds_the_message(open_desk):
    """DUP-16, DUP-07, where the provider can be asked."""
    desk = open_desk(3, can=LOOK_UP, sending={"timeout_seconds": 1, "in_run_wait_seconds": 0})
    desk.script(Fault.TIMEOUT_AFTER_ACCEPT, 2, attempts=99)
    desk.deliver()
    for run in range(1, 5):
        desk.deliver(run_id=f"run-{run}")
        assert desk.row(2).state == "unknown"
    desk.pass_time(60)
    assert desk.deliver(run_id="run-5").findings == {Finding.SENT: 1}
    assert len(sends(desk, 2)) == 1
    assert_once_each(desk, range(1, 4))


@on_sqlite
@pytest.mark.slow
def test_what_was_under_way_when_a_run_was_cancelled_waits_for_a_persons_decision(
    tmp_path, ledger_url, sandbox, nursery
):
    """DUP-17, with a provider that neither knows keys nor can be asked."""
    with frozen_desk(tmp_path, ledger_url, sandbox, 8, NEITHER) as desk:
        desk.script(Fault.HELD_AFTER_ACCEPT, *range(1, 6))
        workers = Workers(nursery, tmp_path, ledger_url)
        running = workers.start(only_deliver=True)
        sandbox.control.wait(accepted=8)
        wait_until(lambda: desk.counts() == {"claimed": 5, "sent": 3})
        running.send(signal.SIGTERM)
        assert running.wait() == End(signal=signal.SIGTERM)
        sandbox.control.release()

        desk.pass_time(91)
        assert workers.start(only_deliver=True).report()["expired"] == 5
        shell = shell_before(tmp_path, ledger_url)
        listed = shell.run("unknowns", "list", *NAMED, "--json").json
        assert [one["operation_key"] for one in listed] == [key_of(n) for n in range(1, 6)]
        assert {one["hold_reason"] for one in listed} == {"no_evidence"}
        decide = ("resolve", *NAMED, "--keys", key_of(1), "--reason", "they were asked")
        assert shell.run(*decide, "--as", "not-sent", "--json").json["applied"] is False
        workers.start(only_deliver=True).report()
        assert desk.counts() == {"unknown": 5, "sent": 3}
        assert shell.run(*decide, "--as", "sent", "--apply", "--json").json["keys"] == [key_of(1)]
        assert desk.counts() == {"unknown": 4, "sent": 4}
    assert sandbox.control.statistics()["arrivals"] == 8


def test_five_processes_one_after_another_send_one_message_each(tmp_path, ledger_url, sandbox, nursery):
    """DUP-20: nothing that a process remembers decides who was sent to."""
    with empty_desk(tmp_path, ledger_url, sandbox, 6, NEITHER) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        done = [workers.start().report() for _ in range(5)]
        assert [one["created"] for one in done] == [True, False, False, False, False]
        assert [one["accepted"] for one in done] == [6, 0, 0, 0, 0]
        assert desk.counts() == {"cleaned": 6}
    assert_once_each(desk, range(1, 7))


def test_two_processes_that_do_the_whole_of_a_period_at_once_share_it(tmp_path, ledger_url, sandbox, nursery):
    """DUP-21, CON-11: two schedulers, both runs go all the way."""
    with empty_desk(tmp_path, ledger_url, sandbox, 40, NEITHER) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        both = [workers.start() for _ in range(2)]
        done = [one.report() for one in both]
        assert sum(one["accepted"] for one in done) == 40
        assert sum(one["cleaned"] for one in done) == 40
        assert len(dump(desk.ledger, "manifest")) == 1
    assert_once_each(desk, range(1, 41))


@on_sqlite
@pytest.mark.slow
def test_a_second_run_for_each_day_of_a_backfill_says_that_everybody_was_served(open_rim):
    """DUP-23."""
    days = [f"2025-03-{day:02d}" for day in range(3, 6)]
    rim = open_rim(customers=3, days=days, cadence="daily", first_period="2025-03-01")
    for run in (1, 2):
        for day in days:
            assert rim.materialise(day).success
            shown = rim.shown("delivery_outcomes", day)
            assert (shown["sent_now"], shown["already_sent"]) == ((3, 0) if run == 1 else (0, 3))
    assert rim.accepted() == {rim.key_of(n, day): 1 for day in days for n in (1, 2, 3)}
    assert len(rim.sql("SELECT id FROM manifest")) == len(days)


@pytest.mark.slow
def test_a_run_that_wakes_after_its_lease_sends_nothing_of_what_it_had_claimed(
    tmp_path, ledger_url, sandbox, nursery
):
    """DUP-25: no provider call is made under an old token, not only no second one accepted."""
    short = {"lease_seconds": 11, "timeout_seconds": 0.5, "lanes": 1, "concurrency": 2}
    with empty_desk(tmp_path, ledger_url, sandbox, 6, LOOK_UP, sending=short) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        asleep = workers.start(f"{Point.AFTER_CLAIM_COMMIT}:stop:1")
        assert asleep.wait() == End(signal=signal.SIGSTOP, stopped=True)
        claimed = [row for row in desk.rows() if row.state == "claimed"]
        assert claimed

        def lease_is_over():
            with desk.ledger.read() as conn:
                return reads.now(conn) > max(row.lease_ends for row in claimed)

        wait_until(lease_is_over)  # in real time: it is the sleeper's own clock that counts
        for _ in range(6):
            workers.start().report()
            desk.pass_time(12)
            if desk.counts() == {"cleaned": 6}:
                break
        assert desk.counts() == {"cleaned": 6}
        arrived = sandbox.control.statistics()["arrivals"]
        asleep.send(signal.SIGCONT)
        assert asleep.report()["accepted"] == 0
        assert sandbox.control.statistics()["arrivals"] == arrived
    assert_once_each(desk, range(1, 7))


def test_a_run_that_was_given_up_before_its_first_claim_finds_nothing_left_to_send(
    tmp_path, ledger_url, sandbox, nursery
):
    """DUP-25: the monitor called it failed; its worker starts all the same, once another run is done."""
    with empty_desk(tmp_path, ledger_url, sandbox, 6, NEITHER) as desk:
        workers = Workers(nursery, tmp_path, ledger_url)
        first = workers.start(f"{Point.BEFORE_FIRST_CLAIM}:stop:1")
        assert first.wait().stopped
        assert workers.start().report()["accepted"] == 6
        first.send(signal.SIGCONT)
        assert first.report()["accepted"] == 0
        assert desk.counts() == {"cleaned": 6}
    assert_once_each(desk, range(1, 7))


@contextmanager
def restored_from_now(ledger_url, request, tmp_path):
    """Take a backup of the ledger now; yields a function that returns a database restored from it."""
    url = make_url(ledger_url)
    if url.get_backend_name() == "sqlite":
        backup = tmp_path / "backup.db"
        with (
            closing(sqlite3.connect(str(url.database))) as source,
            closing(sqlite3.connect(backup)) as target,
        ):
            source.backup(target)
        restored = tmp_path / "restored.db"
        yield lambda: f"sqlite:///{shutil.copy(backup, restored)}"
    else:
        server = request.getfixturevalue("postgres_server")
        with server.database(template=ledger_url) as copy:
            yield lambda: copy


def test_a_restored_backup_holds_and_when_forced_repeats_the_same_keys(
    open_desk, ledger_url, sandbox, request, tmp_path
):
    """DUP-27, DUP-26: the backup is from before Monday's run and is started after it."""
    desk = open_desk(4, can=REPLAYS)
    desk.ledger.engine.dispose()
    with restored_from_now(ledger_url, request, tmp_path) as restore:
        assert desk.deliver().accepted == 4
        with Ledger(restore()) as ledger:
            old = desk.as_process(ledger)
            assert old.counts() == {"pending": 4}
            with pytest.raises(EnvironmentMismatchError):
                old.deliver(run_id="run-2")
            assert sandbox.control.statistics()["arrivals"] == 4

            rebind(ledger, ENVIRONMENT, who="ann", reason="it is the one that goes on")
            old.close_window()
            old.deliver(run_id="run-3")
            with ledger.read() as conn:
                assert reads.summarise(conn, old.manifest_ids).held == {"window_closed": 4}
            assert sandbox.control.statistics()["arrivals"] == 4

            old.sql("UPDATE manifest SET late_until = :until", until=2**60)
            old.deliver(run_id="run-4")
            assert old.counts() == {"sent": 4}
            assert {one.replayed for one in old.attempts()} == {True}
    assert_once_each(desk, range(1, 5))


@on_sqlite
@pytest.mark.slow
def test_the_widest_replay_finds_exactly_the_dead_letters(open_desk, ledger_url, tmp_path):
    """DUP-28: fifty were sent, ten were not, and everybody is named."""
    desk = open_desk(60)
    desk.script(Fault.INVALID_RECIPIENT_422, *range(51, 61))
    desk.deliver()
    shell = shell_before(tmp_path, ledger_url)
    everybody = [part for n in range(1, 61) for part in ("--keys", key_of(n))]
    replays = ("replay", *NAMED, "--reason", "mended", "--json")
    listed = shell.run("dead-letters", "list", *NAMED, "--out", "letters.txt", "--json").json
    assert [one["operation_key"] for one in listed] == [key_of(n) for n in range(51, 61)]
    dry = shell.run(*replays, *everybody).json
    assert (dry["would_change"], dry["refused"], dry["applied"]) == (10, 50, False)
    assert dry["refused_because"] == {"an attempt was accepted: a replay could be a second mail": 50}
    assert desk.counts() == {"sent": 50, "failed": 10}
    assert shell.run(*replays, "--keys", "@letters.txt", "--apply").json["changed"] == 10
    again = shell.run(*replays, "--keys", "@letters.txt", "--apply")
    assert (again.code, again.json["refused_because"]) == (1, {"it is being replayed already": 10})
    desk.deliver(run_id="run-2")
    assert_once_each(desk, range(1, 61))


@on_postgresql
@pytest.mark.slow
def test_of_two_commands_that_replay_one_letter_at_once_one_does_it(open_desk, ledger_url, tmp_path):
    """DUP-29: two clicks, two processes."""
    desk = open_desk(3)
    desk.script(Fault.INVALID_RECIPIENT_422, 2)
    desk.deliver()
    shell = shell_before(tmp_path, ledger_url)
    replays = ("replay", *NAMED, "--keys", key_of(2), "--reason", "mended", "--apply", "--json")
    said = []
    clicks = [threading.Thread(target=lambda: said.append(shell.run(*replays))) for _ in range(2)]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join()
    assert sorted(one.json["changed"] for one in said) == [0, 1]
    assert sorted(one.code for one in said) == [0, 1]
    desk.deliver(run_id="run-2")
    assert len(sends(desk, 2)) == 2
    assert_once_each(desk, range(1, 4))
    assert len(dump(desk.ledger, "operator_action")) == 1


@pytest.mark.parametrize("fault", [Fault.RESET_AFTER_ACCEPT, Fault.RESET_BEFORE_ACCEPT])
def test_an_unknown_whose_key_was_forgotten_is_neither_repeated_nor_replayed(open_desk, fault):
    """DUP-34: asked for by a person on Wednesday, it is refused by name."""
    slowly = {"sending": {"in_run_wait_seconds": 0}, "retry": {"base_seconds": 30, "cap_seconds": 30}}
    desk = open_desk(3, can={**REPLAYS, "key_lifetime": "5m"}, **slowly)
    desk.script(fault, 2)
    desk.deliver()
    desk.pass_time(2 * 86_400)
    desk.deliver(run_id="run-2")
    assert (desk.row(2).state, desk.row(2).hold_reason) == ("unknown", "key_expired")
    decision = replay(desk.ledger, order(desk, 2), apply=True)
    assert decision.refused == {key_of(2): "it is unknown"}
    assert len(sends(desk, 2)) == 1
