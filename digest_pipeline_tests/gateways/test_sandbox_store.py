import asyncio
import sqlite3

import pytest

from digest_pipeline.lab.sandbox.control import ControlError, SandboxControl
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.oracle import Oracle
from digest_pipeline.lab.sandbox.records import Arrival, Verdict
from digest_pipeline.lab.sandbox.store import Store
from digest_pipeline.outcomes import Accepted, Ambiguous, NotSent
from digest_pipeline_tests.harness.sandbox import (
    HASTY,
    envelope,
    envelopes,
    gateway_to,
    look_up,
    running_sandbox,
    send,
)


def test_everything_that_was_answered_survives_a_kill(tmp_path):
    with running_sandbox(tmp_path) as own:
        outcomes = send(gateway_to(own), *envelopes(50))
        own.kill()
        stored = {a.operation_key: a.message_id for a in own.oracle().acceptances()}
        assert stored == {e.operation_key: o.message_id for e, o in zip(envelopes(50), outcomes, strict=True)}
        own.start()
        assert send(gateway_to(own), envelopes(50)[7])[0].replayed
        assert look_up(gateway_to(own), envelopes(50)[7].operation_key).message_id == outcomes[7].message_id


def test_a_kill_in_the_middle_leaves_an_ambiguous_send_whose_replay_is_no_duplicate(tmp_path):
    async def killed(own):
        async with gateway_to(own) as gateway:
            sending = asyncio.create_task(gateway.send(envelope()))
            await asyncio.to_thread(own.control.wait, accepted=1)
            own.kill()
            return await sending

    with running_sandbox(tmp_path) as own:
        own.control.script(Rule(Fault.HELD_AFTER_ACCEPT, next=1))
        assert isinstance(asyncio.run(killed(own)), Ambiguous)
        own.start()
        (outcome,) = send(gateway_to(own), envelope())
        assert isinstance(outcome, Accepted)
        assert outcome.replayed
        assert own.oracle().accepted_count() == 1


def test_whatever_a_kill_interrupts_no_outcome_claims_more_than_the_store(tmp_path):
    """Accepted is in the store, and nothing that was called not sent is."""

    async def killed(own):
        async with gateway_to(own) as gateway:
            sends = [asyncio.create_task(gateway.send(one)) for one in envelopes(400)]
            await asyncio.to_thread(own.control.wait, accepted=50)
            own.kill()
            return await asyncio.gather(*sends)

    with running_sandbox(tmp_path, latency_ms=20) as own:
        outcomes = asyncio.run(killed(own))
        stored = set(own.oracle().accepted_keys())
    by_kind: dict[type, set[str]] = {kind: set() for kind in (Accepted, Ambiguous, NotSent)}
    for sent, outcome in zip(envelopes(400), outcomes, strict=True):
        by_kind[type(outcome)].add(sent.operation_key)
    assert by_kind[Accepted] <= stored
    assert not by_kind[NotSent] & stored
    assert len(stored) >= 50
    assert by_kind[NotSent]


def test_a_frozen_provider_is_ambiguous_and_goes_on_when_it_thaws(tmp_path):
    with running_sandbox(tmp_path) as own:
        own.pause()
        (outcome,) = send(gateway_to(own, limits=HASTY), envelope())
        assert isinstance(outcome, Ambiguous)
        own.resume()
        # Another key: the frozen request may still be in progress, and its own would get 409.
        assert isinstance(send(gateway_to(own), envelope("another"))[0], Accepted)
        assert list(own.oracle().duplicates()) == []


def test_the_store_never_holds_an_address(tmp_path):
    with running_sandbox(tmp_path) as own:
        send(gateway_to(own), envelope(recipient="very.personal@example.test"))
        send(gateway_to(own), envelope("2", recipient="other.personal@bounce.example"))
        own.kill()
    files = list(tmp_path.iterdir())
    assert files
    assert not any(b"personal" in file.read_bytes() for file in files)


def test_the_oracle_counts_arrivals_in_any_window(tmp_path):
    async def fill(store):
        for number, second in enumerate([0.0, 0.5, 0.999999, 1.0, 1.2, 5.0]):
            await store.add(
                Arrival(number, int(second * 1e6), "send", f"k{number}", 1, Verdict.ACCEPTED, 200, 1)
            )

    async def run():
        store = Store(tmp_path / "s.db")
        await fill(store)
        store.close()

    asyncio.run(run())
    oracle = Oracle(tmp_path / "s.db")
    assert [oracle.max_arrivals(w) for w in (0.000001, 0.5, 1.0, 10.0)] == [1, 3, 4, 6]


def test_the_oracle_reads_the_file_of_a_server_that_has_stopped(tmp_path):
    with running_sandbox(tmp_path) as own:
        send(gateway_to(own), envelope())
    assert own.oracle().accepted_count() == 1


def test_the_oracle_cannot_change_what_it_reads(tmp_path):
    with running_sandbox(tmp_path) as own, pytest.raises(sqlite3.OperationalError):
        list(own.oracle()._rows("DELETE FROM arrival"))


def test_message_ids_are_never_given_twice_not_even_after_a_reset(tmp_path):
    with running_sandbox(tmp_path) as own:
        before = send(gateway_to(own), *envelopes(3))
        own.control.reset()
        own.restart()
        after = send(gateway_to(own), *envelopes(3))
    assert len({outcome.message_id for outcome in [*before, *after]}) == 6


def test_the_admin_side_needs_the_key_and_names_what_it_does_not_know(sandbox):
    with pytest.raises(ControlError, match="nonsense"):
        sandbox.control._call("POST", "faults", {"rules": [{"fault": "nonsense", "next": 1}]})
    with pytest.raises(ControlError, match="port"):
        sandbox.control.change(port=1)
    with pytest.raises(ControlError, match="invalid_api_key"):
        SandboxControl(sandbox.url, "wrong").statistics()


def test_an_arrival_is_listed_with_its_hashes_and_verdict(sandbox):
    send(gateway_to(sandbox), envelope(), envelope())
    first, second = sandbox.control.arrivals(envelope().operation_key)
    assert (first["verdict"], second["verdict"]) == ("accepted", "replayed")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert len(first["body_hash"]) == len(first["recipient_hash"]) == 64
    assert first["body_hash"] == second["body_hash"]
    assert first["recipients"] == 1
