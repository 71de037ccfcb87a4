"""The shared transport, against a server that says what it is told to."""

import asyncio
import logging
import socket
from datetime import timedelta

import aiohttp
import pytest

from digest_pipeline.gateways.http import Answer, HttpLimits, exchange, open_session
from digest_pipeline.gateways.sandbox import SandboxGateway
from digest_pipeline.outcomes import (
    AccountRefused,
    Ambiguous,
    FailureClass,
    Found,
    LookUpFailed,
    NotSent,
    Stage,
)
from digest_pipeline_tests.harness.raw_http import RESET, SECRET, answer, outcome_of, raw_server
from digest_pipeline_tests.harness.sandbox import envelope, envelopes, send_batch


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01 not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        RESET,
    ],
    ids=["cut body", "cut header", "other protocol", "binary", "bad chunk", "bad gzip", "reset"],
)
def test_an_answer_that_cannot_be_read_is_ambiguous(said):
    limits = HttpLimits(total=timedelta(seconds=0.5))
    (outcome,), server = outcome_of(said, limits=limits)
    assert isinstance(outcome, Ambiguous)
    assert len(server.requests) == 1


def test_an_endless_answer_is_cut_and_ambiguous():
    (outcome,), _ = outcome_of(answer(200, b" " * (5 * 1024 * 1024)))
    assert isinstance(outcome, Ambiguous)


def test_a_post_is_never_sent_again_on_a_connection_that_dropped():
    """DUP-33: also on a kept-alive connection, where aiohttp repeats idempotent methods."""
    good = answer(200, b'{"id": "a"}')
    outcomes, server = outcome_of(good, RESET, good, count=2)
    assert type(outcomes[1]) is Ambiguous
    assert len(server.requests) == 2


def test_a_look_up_is_not_repeated_behind_the_rate_gate_either():
    async def run():
        data = b'{"data": [{"operation_key": "k", "id": "a"}]}'
        async with raw_server([answer(200, data), RESET, answer(200, data)]) as server:
            async with SandboxGateway(server.url, SECRET) as gateway:
                return await gateway.look_up("k"), await gateway.look_up("k"), len(server.requests)

    first, second, requests = asyncio.run(run())
    assert first == Found("a")
    assert isinstance(second, LookUpFailed)
    assert requests == 2


def test_a_redirect_is_not_followed():
    """SEC-10."""
    (outcome,), server = outcome_of(answer(302, b"", "Location: /elsewhere\r\n"), answer(200, b'{"id": "x"}'))
    assert isinstance(outcome, AccountRefused)
    assert len(server.requests) == 1


def test_cookies_are_not_kept():
    good = answer(200, b'{"id": "a"}', "Set-Cookie: session=1; Path=/\r\n")
    _, server = outcome_of(good, count=2)
    assert b"Cookie" not in server.requests[1]


def test_the_environments_proxy_is_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://user:S3cr3t@127.0.0.1:1")
    (outcome,), server = outcome_of(answer(200, b'{"id": "a"}'))
    assert outcome.message_id == "a"
    assert len(server.requests) == 1


def test_a_refused_connection_and_an_unknown_host_are_proof_that_nothing_left():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{free.getsockname()[1]}", "http://no-such-host.invalid"]

        async def run(url):
            async with SandboxGateway(
                url, SECRET, limits=HttpLimits(connect=timedelta(seconds=5))
            ) as gateway:
                return await gateway.send(envelope())

        for url in urls:
            outcome = asyncio.run(run(url))
            assert isinstance(outcome, NotSent)
            assert (outcome.failure_class, outcome.stage) == (FailureClass.CONNECT, Stage.BEFORE_WIRE)


def test_a_failed_tls_handshake_is_proof_that_nothing_left():
    async def run():
        async with raw_server([b"not tls"]) as server:
            url = server.url.replace("http:", "https:")
            limits = HttpLimits(connect=timedelta(seconds=0.3))
            async with SandboxGateway(url, SECRET, limits=limits) as gateway:
                return await gateway.send(envelope())

    outcome = asyncio.run(run())
    assert isinstance(outcome, NotSent)
    assert outcome.failure_class is FailureClass.CONNECT


def test_waiting_for_a_free_connection_is_before_the_wire():
    async def run():
        async with raw_server([b""]) as server:  # never answers
            limits = HttpLimits(total=timedelta(seconds=1), connect=timedelta(seconds=0.1), connections=1)
            async with SandboxGateway(server.url, SECRET, limits=limits) as gateway:
                return await asyncio.gather(*(gateway.send(one) for one in envelopes(2)))

    kinds = {type(outcome) for outcome in asyncio.run(run())}
    assert kinds == {Ambiguous, NotSent}


def test_a_cancelled_send_raises_and_leaves_no_outcome():
    async def run():
        async with raw_server([b""]) as server:
            async with SandboxGateway(server.url, SECRET) as gateway:
                sending = asyncio.create_task(gateway.send(envelope()))
                await server.arrived.wait()
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending

    asyncio.run(run())


def test_neither_key_nor_recipient_is_in_logs_exceptions_or_details(caplog):
    """SEC-01 and SEC-02: the provider echoes both, the transport fails, and debug logging is on."""
    caplog.set_level(logging.DEBUG)
    address, name = envelope().recipient, envelope().message.to_name
    echo = f'{{"name": "validation_error", "message": "Bearer {SECRET} for {address} ({name})"}}'.encode()
    seen = []
    for said in (
        answer(422, echo),
        answer(401, echo),
        answer(429, echo),
        answer(500, echo),
        RESET,
        b"junk\r\n\r\n",
    ):
        outcomes, _ = outcome_of(said, limits=HttpLimits(total=timedelta(seconds=0.5)))
        seen += [repr(outcome) for outcome in outcomes]
    everything = " ".join(seen) + caplog.text
    for form in (SECRET, "S3cr3t", address, address.split("@")[0], name):
        assert form not in everything


def test_an_exchange_keeps_answers_out_of_its_repr():
    shown = repr(Answer(200, {"Set-Cookie": "secret"}, b"a@b.test"))
    assert "secret" not in shown
    assert "a@b.test" not in shown


def test_only_cancellation_leaves_an_exchange():
    async def run():
        async with open_session(HttpLimits()) as session:
            return await exchange(session, "POST", "http://127.0.0.1:1/", {}, b"x")

    assert isinstance(asyncio.run(run()), NotSent)


def test_aiohttp_still_leaves_posts_alone():
    """The reason why a send needs no guard of its own; a new aiohttp that changes it fails here."""
    assert "POST" not in aiohttp.client.IDEMPOTENT_METHODS
    assert issubclass(aiohttp.ServerDisconnectedError, aiohttp.ClientError)


def test_a_batch_holds_each_key_once():
    with pytest.raises(ValueError, match="once"):
        send_batch(SandboxGateway("http://127.0.0.1:1", SECRET), [envelope(), envelope()])
