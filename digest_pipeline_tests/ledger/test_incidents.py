"""An incident is opened once, counted, closed and only then opened anew, whoever looks and how often."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from digest_pipeline.ledger import incidents, notices
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.incidents import Identity, Incident, Seen
from digest_pipeline.ledger.notices import Notice
from digest_pipeline.ledger.schema import incident, incident_notice
from digest_pipeline_tests.harness.ledgers import migrated

WHAT = Identity("run_failed", "tiny_digest", "2025-W10", "digest_rows:SourceError")


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with migrated(ledger_url) as opened:
        yield opened


def open_one(
    ledger: Ledger, at: int = 10, what: Identity = WHAT, channels: tuple[str, ...] = ("log",)
) -> Seen:
    return ledger.transact(lambda c: incidents.open_incident(c, what, at, "error", "{}", channels))


def count(ledger: Ledger, at: int) -> bool:
    return ledger.transact(lambda c: incidents.count_again(c, WHAT, at))


def close(ledger: Ledger, at: int) -> bool:
    return ledger.transact(lambda c: incidents.close_incident(c, WHAT, at))


def stored(ledger: Ledger) -> list[Incident]:
    with ledger.read() as conn:
        rows = conn.execute(select(incident).order_by(incident.c.event_at)).mappings()
        return [Incident(**row) for row in rows]


def due(ledger: Ledger) -> list[Notice]:
    with ledger.read() as conn:
        return notices.due(conn)


def notice_row(ledger: Ledger, channel: str = "log"):
    with ledger.read() as conn:
        return conn.execute(select(incident_notice).where(incident_notice.c.channel == channel)).one()


def pass_waits(ledger: Ledger) -> None:
    with ledger.write() as conn:
        conn.execute(text("UPDATE incident_notice SET next_try_at = 1 WHERE next_try_at IS NOT NULL"))


def test_a_first_failure_opens_and_later_ones_only_count(ledger):
    assert open_one(ledger, 10) is Seen.OPENED
    assert count(ledger, 20)
    assert count(ledger, 30)
    assert open_one(ledger, 40) is Seen.KNOWN
    (one,) = stored(ledger)
    assert (one.times, one.event_at, one.closed_at) == (3, 30, None)


def test_an_event_that_was_taken_in_before_changes_nothing(ledger):
    open_one(ledger, 10)
    count(ledger, 20)
    assert not count(ledger, 20)
    assert not count(ledger, 15)
    assert stored(ledger)[0].times == 2


def test_a_pass_that_is_older_than_the_newest_failure_closes_nothing(ledger):
    open_one(ledger, 10)
    assert not close(ledger, 9)
    assert not close(ledger, 10)
    assert close(ledger, 11)
    assert not close(ledger, 12)


def test_a_lost_cursor_does_not_open_again_what_is_over(ledger):
    open_one(ledger, 10)
    close(ledger, 20)
    assert open_one(ledger, 10) is Seen.KNOWN
    assert open_one(ledger, 20) is Seen.KNOWN
    assert not count(ledger, 15)
    assert len(stored(ledger)) == 1


def test_a_later_failure_opens_a_new_incident_under_another_id(ledger):
    open_one(ledger, 10)
    close(ledger, 20)
    assert open_one(ledger, 30) is Seen.OPENED
    old, new = stored(ledger)
    assert old.closed_at is not None
    assert (new.closed_at, new.times) == (None, 1)
    assert old.id != new.id


@pytest.mark.parametrize("part", ["kind", "digest", "period", "subject"])
def test_what_differs_in_one_part_is_another_incident(ledger, part):
    other = Identity(**{name: getattr(WHAT, name) for name in WHAT.__slots__} | {part: "other"})
    assert open_one(ledger) is Seen.OPENED
    assert open_one(ledger, what=other) is Seen.OPENED
    close(ledger, 50)
    with ledger.read() as conn:
        assert [one.identity for one in incidents.open_ones(conn)] == [other]


def test_the_database_itself_refuses_a_second_open_incident_of_a_thing(ledger):
    open_one(ledger)
    with ledger.write() as conn, pytest.raises(IntegrityError):
        conn.execute(
            text(
                "INSERT INTO incident SELECT 'x', kind, digest, period, subject, severity, facts, times, "
                "opened_at, last_seen_at, event_at, closed_at FROM incident"
            )
        )


def at_once(workers: int, act: Callable[[int], Any]) -> list[Any]:
    start = Barrier(workers)

    def work(number: int):
        start.wait(timeout=30)
        return act(number)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


def test_of_many_sensors_that_see_it_at_once_one_opens_it(ledger):
    seen = at_once(6, lambda n: open_one(ledger, 10 + n, channels=("log", "webhook")))
    assert sorted(seen) == [Seen.KNOWN] * 5 + [Seen.OPENED]
    assert len(due(ledger)) == 2


def test_of_many_that_want_to_tell_one_gets_to(ledger):
    open_one(ledger)
    (notice,) = due(ledger)
    claims = at_once(6, lambda _: ledger.transact(lambda c: notices.claim(c, notice)))
    assert sorted(claims) == [False] * 5 + [True]
    assert notice_row(ledger).tries == 1
    assert due(ledger) == []


def test_what_was_told_is_never_due_again(ledger):
    open_one(ledger)
    (notice,) = due(ledger)
    ledger.transact(lambda c: notices.claim(c, notice))
    assert ledger.transact(lambda c: notices.told(c, notice, "accepted"))
    pass_waits(ledger)
    assert due(ledger) == []
    assert notice_row(ledger).told_at is not None


def test_a_claim_that_died_is_due_again_after_its_wait(ledger):
    open_one(ledger)
    (notice,) = due(ledger)
    ledger.transact(lambda c: notices.claim(c, notice))
    pass_waits(ledger)
    (again,) = due(ledger)
    assert again.tries == 1
    assert ledger.transact(lambda c: notices.claim(c, again))
    assert not ledger.transact(lambda c: notices.told(c, notice, "accepted")), "the first claim was lost"


def test_the_waits_double_and_end_at_an_hour():
    minutes = [notices.wait_after(tries) / 60e6 for tries in range(1, 9)]
    assert minutes == [1, 2, 4, 8, 16, 32, 60, 60]
    assert notices.wait_after(10_000) == 3_600_000_000


def test_an_incident_that_is_over_is_told_to_nobody_any_more(ledger):
    open_one(ledger)
    close(ledger, 20)
    assert due(ledger) == []


def test_a_try_that_surely_reached_nobody_leaves_no_doubt_and_another_one_leaves_it(ledger):
    open_one(ledger)
    (first,) = due(ledger)
    ledger.transact(lambda c: notices.claim(c, first) and notices.mark_doubtful(c, first, "account-1"))
    assert notice_row(ledger).doubtful_at is not None
    ledger.transact(lambda c: notices.not_told(c, first, "not_told"))
    assert notice_row(ledger).doubtful_at is None
    pass_waits(ledger)
    (second,) = due(ledger)
    ledger.transact(lambda c: notices.claim(c, second) and notices.mark_doubtful(c, second, "account-1"))
    ledger.transact(lambda c: notices.maybe_told(c, second, "no_answer"))
    since = notice_row(ledger).doubtful_at
    pass_waits(ledger)
    (third,) = due(ledger)
    assert (third.doubtful_at, third.account) == (since, "account-1")
    ledger.transact(lambda c: notices.claim(c, third) and notices.mark_doubtful(c, third, "account-2"))
    ledger.transact(lambda c: notices.not_told(c, third, "not_told"))
    assert notice_row(ledger).doubtful_at == since, "a later refusal says nothing about the earlier try"
