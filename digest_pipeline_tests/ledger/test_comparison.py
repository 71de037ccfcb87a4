import asyncio
import time
from collections.abc import Iterator

import pytest

from digest_pipeline.delivery.gate_keeping import halt_gate
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.ledger import comparable, gates
from digest_pipeline.ledger.schema import attempt
from digest_pipeline.reconciliation.asking import take_permits
from digest_pipeline.reconciliation.comparison import KEPT_KEYS, compare_with_provider
from digest_pipeline.reconciliation.reporting.report import write_report
from digest_pipeline_tests.harness.delivering import LOOK_UP, NEITHER, frozen_desk, key_of
from digest_pipeline_tests.harness.ledgers import PERIOD, plant
from digest_pipeline_tests.harness.sandbox import as_new, envelope, running_sandbox, send

HOUR = 3_600


@pytest.fixture(scope="module")
def own_sandbox(tmp_path_factory) -> Iterator[SandboxProcess]:
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as process:
        yield process


@pytest.fixture
def sandbox(own_sandbox) -> SandboxProcess:
    return as_new(own_sandbox)


@pytest.fixture
def desk_of(tmp_path, ledger_url, sandbox):
    """Return a context manager that makes a delivered period."""

    def make(customers=5, **keywords):
        return frozen_desk(tmp_path, ledger_url, sandbox, customers, **keywords)

    return make


def compare(desk, sample=200, **settings):
    async def run():
        async with desk.gateway(**settings) as gateway:
            return await compare_with_provider(desk.ledger, desk.plan(gateway), sample=sample)

    return asyncio.run(run())


def add_attempt(desk, number, outcome, token=None, stage="after_wire"):
    """Plant one more attempt of a delivery."""
    row = desk.row(number)
    with desk.ledger.write() as conn:
        conn.execute(
            attempt.insert().values(
                token=token or 10_000 + number,
                manifest_id=row.manifest_id,
                ordinal=number,
                claimed_by="run-0/s1",
                gateway="sandbox",
                account=desk.gateway().account,
                claimed_at=row.claimed_at,
                ended_at=row.claimed_at,
                stage=stage,
                outcome=outcome,
                charged=True,
            )
        )


def lookups(desk):
    return [a["operation_key"] for a in desk.sandbox.control.arrivals() if a["route"] == "look_up"]


def test_what_both_have_is_confirmed(desk_of):
    with desk_of() as desk:
        desk.deliver()
        found = compare(desk)
    assert (found.asked, found.confirmed, found.agrees, found.reason) == (5, 5, True, "")


def test_accepted_by_the_ledger_and_listed_by_nobody_is_flagged_in_bulk(desk_of, tmp_path):
    """LOST-11."""
    with desk_of(200) as desk:
        desk.deliver()
        desk.sandbox.control.reset()
        found = compare(desk)
        report = write_report(desk.ledger, desk.digest, PERIOD, tmp_path / "reports", found, "run-1")
    assert found.asked == len(found.missing_at_provider) == 200
    assert len(list(found.missing_at_provider)) == KEPT_KEYS
    assert not found.agrees
    assert report.numbers["missing_at_provider"] == 200
    assert "disagree" in report.markdown
    assert "accepted 200 messages and lists none of them" in report.markdown
    assert "example.test" not in report.html.read_text("utf-8")


def test_a_message_the_ledger_does_not_call_sent_is_unexpected(desk_of):
    with desk_of() as desk:
        desk.deliver()
        row = desk.row(2)
        plant(
            desk.ledger,
            row.manifest_id,
            2,
            "dead",
            account=row.account,
            claimed_at=row.claimed_at,
            token=row.token,
        )
        add_attempt(desk, 2, "expired")
        found = compare(desk)
    assert list(found.unexpected_at_provider) == [key_of(2)]
    assert (found.asked, found.confirmed) == (5, 4)


def test_a_failure_that_nothing_makes_doubtful_is_not_asked_about(desk_of):
    with desk_of() as desk:
        desk.deliver()
        row = desk.row(2)
        plant(desk.ledger, row.manifest_id, 2, "failed", account=row.account)
        found = compare(desk)
        assert key_of(2) not in lookups(desk)
    assert found.asked == 4


def test_two_messages_under_one_key_are_a_duplicate(desk_of):
    with desk_of(can=LOOK_UP) as desk:
        desk.deliver()
        again = envelope()
        again = type(again)(key_of(3), again.recipient, again.message)
        send(desk.gateway(), again)
        add_attempt(desk, 3, "ambiguous")
        found = compare(desk, sample=0)
    assert list(found.duplicated) == [key_of(3)]
    assert len(found.duplicated) == found.asked == found.confirmed == 1


def test_attempts_that_never_reached_the_wire_make_nothing_doubtful(desk_of):
    with desk_of() as desk:
        desk.deliver()
        add_attempt(desk, 1, "released", stage="before_wire")
        add_attempt(desk, 2, "throttled")
        compare(desk, sample=0)
        assert lookups(desk) == [key_of(2)]


def test_a_provider_that_cannot_be_asked_is_said_to_be_one(desk_of):
    with desk_of(can=NEITHER) as desk:
        desk.deliver()
        found = compare(desk)
    assert found.asked == 0
    assert "cannot be asked" in found.reason


def test_an_absence_before_the_visibility_delay_is_not_missing(desk_of):
    with desk_of() as desk:
        desk.deliver()
        desk.sandbox.control.reset()
        add_attempt(desk, 1, "ambiguous")
        found = compare(desk, visibility_delay="1h")
        assert (found.asked, found.outside_window, len(found.missing_at_provider)) == (1, 1, 0)
        desk.pass_time(HOUR)
        found = compare(desk, visibility_delay="1h")
    assert (found.asked, found.outside_window, len(found.missing_at_provider)) == (5, 0, 5)


def test_an_absence_after_the_retention_is_not_missing(desk_of):
    with desk_of() as desk:
        desk.deliver()
        desk.sandbox.control.reset()
        add_attempt(desk, 1, "ambiguous")
        desk.pass_time(2 * HOUR)
        found = compare(desk, look_up_retention="1h")
    assert (found.asked, found.outside_window, len(found.missing_at_provider)) == (1, 1, 0)


def test_no_readable_answer_is_counted_apart(desk_of):
    with desk_of() as desk:
        desk.deliver()
        desk.sandbox.control.script(Rule(Fault.SERVER_ERROR_500_BEFORE_ACCEPT, next=2, route="look_up"))
        found = compare(desk)
    assert (found.confirmed, len(found.unanswered), found.agrees) == (3, 2, True)


def test_a_throttled_question_closes_the_gate_for_everyone(desk_of):
    with desk_of() as desk:
        desk.deliver()
        desk.sandbox.control.script(Rule(Fault.THROTTLED_429, next=1, route="look_up", retry_after=60))
        compare(desk)
        permits = take_permits(desk.ledger, desk.plan(), 1)
    assert permits.starts == ()
    assert permits.again_in is not None
    assert permits.again_in > 30


def test_questions_wait_for_the_same_permits_as_sends(desk_of):
    with desk_of(40) as desk:
        desk.deliver()
        slow = desk.digest.rate.model_copy(update={"per_second": 40.0, "burst": 20})
        desk.digest = desk.digest.model_copy(update={"rate": slow})
        plan = desk.plan()
        with desk.ledger.write() as conn:
            gates.configure(conn, plan.gate, slow.per_second, slow.burst)
        desk.sandbox.control.reset()
        found = compare(desk)
        assert found.asked == 40
        assert desk.sandbox.oracle().max_arrivals(0.5, look_ups=True) <= 40 * 0.5 + 20


def test_a_halted_account_is_not_asked_and_keeps_its_probe_for_a_send(desk_of):
    with desk_of() as desk:
        desk.deliver()
        gate = desk.plan().gate
        halt_gate(desk.ledger, gate, "account: refused")
        desk.sql("UPDATE rate_gate SET probe_at = 1")
        found = compare(desk)
        assert lookups(desk) == []
        with desk.ledger.read() as conn:
            kept = gates.read(conn, gate)
    assert kept is not None
    assert kept.probe_at == 1
    assert found.asked == 0
    assert "halted" in found.reason


def test_a_gate_that_is_closed_for_long_ends_the_questions(desk_of):
    with desk_of() as desk:
        desk.deliver()
        desk.sql("UPDATE rate_gate SET closed_until = 4000000000000000")
        found = compare(desk)
    assert found.asked == 0
    assert "no more permits" in found.reason


def test_another_account_is_not_asked_about(desk_of):
    with desk_of() as desk:
        desk.deliver()
        desk.sql("UPDATE delivery SET account = 'other' WHERE ordinal = 1")
        compare(desk)
        assert key_of(1) not in lookups(desk)


def test_what_another_run_settled_meanwhile_is_no_contradiction(desk_of):
    """The key is unknown when it is chosen, and sent before the provider's answer is judged."""
    with desk_of() as desk:
        desk.deliver()
        row = desk.row(2)
        held = plant_unknown(desk, row)
        add_attempt(desk, 2, "ambiguous")
        desk.sandbox.control.script(Rule(Fault.HELD_AFTER_ACCEPT, next=1, route="look_up"))

        async def run():
            async with desk.gateway() as gateway:
                comparing = asyncio.create_task(
                    compare_with_provider(desk.ledger, desk.plan(gateway), sample=0)
                )
                deadline = time.monotonic() + 30
                while not await asyncio.to_thread(lookups, desk):
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.01)
                plant(desk.ledger, row.manifest_id, 2, "sent", account=row.account, claimed_at=row.claimed_at)
                await asyncio.to_thread(desk.sandbox.control.release)
                return await comparing

        found = asyncio.run(run())
    assert held
    assert (found.asked, found.confirmed, len(found.unexpected_at_provider)) == (1, 1, 0)


def plant_unknown(desk, row):
    plant(
        desk.ledger,
        row.manifest_id,
        row.ordinal,
        "unknown",
        account=row.account,
        claimed_at=row.claimed_at,
        ambiguous_at=row.claimed_at,
    )
    return desk.row(row.ordinal).state == "unknown"


@pytest.mark.parametrize(("size", "expected"), [(4, 4), (7, 7), (20, 20), (50, 20)])
def test_the_sample_is_spread_evenly_and_the_same_every_time(desk_of, size, expected):
    with desk_of(20) as desk:
        desk.deliver()
        account = desk.gateway().account
        with desk.ledger.read() as conn:
            one, two = (
                [
                    row.ordinal
                    for row in comparable.spread_sample(
                        conn, desk.manifest_ids, "sandbox", account, 0, 10**12, size
                    )
                ]
                for _ in range(2)
            )
    assert one == two
    assert len(one) == expected
    gaps = [b - a for a, b in zip([0, *one], one, strict=False)]
    assert max(gaps) - min(gaps) <= 1
