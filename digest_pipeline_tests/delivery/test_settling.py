"""Writing results: one that the ledger refuses never touches another, and no send is repeated for it."""

from dataclasses import replace

import pytest

from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.outcomes import Accepted
from digest_pipeline_tests.harness.delivering import NEITHER, assert_once_each, key_of


class Renaming:
    """A provider that answers for one key with text that a database cannot store."""

    def __init__(self, real, key, text):
        self._real, self._key, self._text = real, key, text
        self.name, self.account, self.capabilities = real.name, real.account, real.capabilities

    async def send(self, envelope):
        outcome = await self._real.send(envelope)
        if envelope.operation_key != self._key:
            return outcome
        if isinstance(outcome, Accepted):
            return replace(outcome, message_id=self._text)
        return replace(outcome, detail=self._text)

    async def look_up(self, operation_key):
        return await self._real.look_up(operation_key)

    async def __aenter__(self):
        await self._real.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self._real.__aexit__(*error)


def refuse_acceptances_of(desk, ordinal):
    """Make the database itself refuse to record this delivery's acceptance."""
    if desk.ledger.is_postgresql:
        desk.sql(f"ALTER TABLE attempt ADD CHECK (ordinal <> {ordinal} OR outcome <> 'accepted')")
    else:
        desk.sql(
            f"CREATE TRIGGER refuse BEFORE INSERT ON attempt WHEN NEW.ordinal = {ordinal} "
            "AND NEW.outcome = 'accepted' BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )


def test_a_result_that_the_ledger_refuses_becomes_unknown_and_the_others_are_settled(open_desk):
    """DUP-11, DUP-13."""
    desk = open_desk(10, can=NEITHER, sending={"run_limit_seconds": 3})
    refuse_acceptances_of(desk, 4)
    desk.deliver()
    assert desk.counts() == {"sent": 9, "claimed": 1}
    desk.pass_time(61)
    desk.deliver(run_id="run-2")
    assert desk.counts() == {"sent": 9, "unknown": 1}
    assert desk.row(4).hold_reason == "no_evidence"
    assert desk.sandbox.oracle().attempts(key_of(4)) == 1
    assert_once_each(desk, range(1, 11))


@pytest.mark.parametrize("text", ["nul\x00inside", "half of a pair \ud800", "x" * 10_000])
def test_an_acceptance_counts_whatever_the_provider_calls_the_message(open_desk, text):
    desk = open_desk(6)
    desk.deliver(Renaming(desk.gateway(), key_of(3), text))
    assert desk.counts() == {"sent": 6}
    others = [row for row in desk.rows() if row.ordinal != 3]
    assert all(row.message_id for row in others)
    assert_once_each(desk, range(1, 7))


@pytest.mark.parametrize("text", ["nul\x00inside", "half of a pair \ud800", "x" * 10_000])
def test_a_refusal_counts_whatever_the_provider_says_about_it(open_desk, text):
    desk = open_desk(3)
    desk.script(Fault.INVALID_RECIPIENT_422, 2)
    desk.deliver(Renaming(desk.gateway(), key_of(2), text))
    assert desk.counts() == {"sent": 2, "failed": 1}
    (attempt,) = desk.attempts(2)
    assert attempt.outcome == "refused"
    assert len(attempt.detail) <= 200
