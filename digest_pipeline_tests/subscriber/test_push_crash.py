"""Subscribers that die in the middle, and two of them at once: every key is sent once."""

import http.client
from concurrent.futures import ThreadPoolExecutor

import pytest

from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.ledger.receipts import ReceiptState
from digest_pipeline_tests.harness.delivering import REPLAYS, assert_once_each, key_of
from digest_pipeline_tests.subscriber.endpoint import until
from digest_pipeline_tests.subscriber.pushing import (
    body_of,
    push_gateway,
    receipt_of,
    subscribing,
    variables_of,
)

pytestmark = pytest.mark.crash

LOST = (http.client.HTTPException, OSError)


def pushed_into_the_void(server, body):
    """Push, and return whether the connection was lost without an answer."""
    try:
        server.push(body)
    except LOST:
        return True
    return False


def is_sending(desk):
    found = receipt_of(desk.ledger, 1)
    return found is not None and found.state is ReceiptState.SENDING


def once_the_lease_is_over(desk, server):
    """A live lease is somebody's, as far as anyone can tell; once it is over, the same key goes again."""
    assert server.push(body_of(desk, 1)).outcome == "busy"
    desk.pass_time(70)
    desk.pass_time(70)
    until(lambda: server.push(body_of(desk, 1)).outcome == "complete")
    assert_once_each(desk, range(1, 2))


def test_killed_while_the_provider_has_it_it_is_sent_once(open_desk, tmp_path, tls):
    """Between claim and answer: the provider accepted, and nobody heard of it."""
    desk = open_desk(1, can=REPLAYS)
    desk.script(Fault.HELD_AFTER_ACCEPT, 1)
    variables = variables_of(desk, tmp_path)
    with ThreadPoolExecutor(1) as threads, subscribing(tmp_path, tls, variables, "first") as first:
        lost = threads.submit(pushed_into_the_void, first, body_of(desk, 1))
        desk.sandbox.control.wait(accepted=1)
        first.kill()
        assert lost.result()
    desk.sandbox.control.release()
    with subscribing(tmp_path, tls, variables, "second") as second:
        once_the_lease_is_over(desk, second)


def test_killed_between_the_send_and_its_record_it_is_sent_once(open_desk, tmp_path, tls):
    desk = open_desk(1, can=REPLAYS)
    variables = variables_of(desk, tmp_path)
    fault = variables | {"DIGEST_FAULT": "during_provider_call:kill"}
    with subscribing(tmp_path, tls, fault, "first") as first:
        assert pushed_into_the_void(first, body_of(desk, 1))
        assert first.process.wait(60) == -9
    assert is_sending(desk)
    with subscribing(tmp_path, tls, variables, "second") as second:
        once_the_lease_is_over(desk, second)


def test_killed_before_the_provider_looked_at_it_it_is_sent_once(open_desk, tmp_path, tls):
    desk = open_desk(1, can=REPLAYS)
    variables = variables_of(desk, tmp_path)
    desk.sandbox.pause()
    try:
        with ThreadPoolExecutor(1) as threads, subscribing(tmp_path, tls, variables, "first") as first:
            lost = threads.submit(pushed_into_the_void, first, body_of(desk, 1))
            until(lambda: is_sending(desk))
            first.kill()
            assert lost.result()
    finally:
        desk.sandbox.resume()
    with subscribing(tmp_path, tls, variables, "second") as second:
        once_the_lease_is_over(desk, second)


def test_two_subscribers_of_one_ledger_send_each_key_once(open_desk, tmp_path, tls):
    desk = open_desk(6, can=REPLAYS)
    bodies = [body_of(desk, number) for number in range(1, 7)]
    variables = variables_of(desk, tmp_path)
    with (
        subscribing(tmp_path, tls, variables, "first") as first,
        subscribing(tmp_path, tls, variables, "second") as second,
        ThreadPoolExecutor(12) as threads,
    ):
        answers = list(
            threads.map(
                lambda pair: pair[0].push(pair[1]).outcome, [(s, b) for b in bodies for s in (first, second)]
            )
        )
        assert set(answers) <= {"complete", "busy"}
        until(lambda: all(second.push(body).outcome == "complete" for body in bodies))
    assert_once_each(desk, range(1, 7))
    assert all(desk.sandbox.oracle().attempts(key_of(number)) == 1 for number in range(1, 7))


def test_a_period_is_delivered_over_a_subscriber_that_dies_in_the_middle(open_desk, tmp_path, tls):
    desk = open_desk(
        8, can=REPLAYS, sending={"timeout_seconds": 5, "lease_seconds": 20, "in_run_wait_seconds": 0}
    )
    variables = variables_of(desk, tmp_path)
    with subscribing(
        tmp_path, tls, variables | {"DIGEST_FAULT": "during_provider_call:kill:4"}, "first"
    ) as first:
        desk.deliver(gateway=push_gateway(first), run_id="run-1")
        assert first.process.wait(60) == -9
    assert desk.counts().get("unknown", 0) >= 1
    with subscribing(tmp_path, tls, variables, "second") as second:
        for number in range(2, 8):
            desk.pass_time(70)
            desk.pass_time(70)
            desk.deliver(gateway=push_gateway(second), run_id=f"run-{number}")
            if desk.counts() == {"sent": 8}:
                break
    assert desk.counts() == {"sent": 8}
    assert_once_each(desk, range(1, 9))
