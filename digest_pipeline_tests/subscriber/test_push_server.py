"""The subscriber as a server of its own, over TLS that is verified: who may push, and what comes back."""

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from digest_pipeline.demo.push import make_tls
from digest_pipeline.gateways.https_push_body import message_id_of
from digest_pipeline.gateways.signing import Signer
from digest_pipeline.ledger.schema import push_receipt
from digest_pipeline.outcomes import AccountRefused, FailureClass, NotSent
from digest_pipeline_tests.gateways.stands import digest
from digest_pipeline_tests.gateways.stands_push import PREVIOUS, SECRET
from digest_pipeline_tests.harness.delivering import Desk, assert_once_each, frozen_desk, key_of
from digest_pipeline_tests.harness.sandbox import as_new
from digest_pipeline_tests.subscriber.pushing import (
    SECONDS,
    Server,
    body_of,
    push_gateway,
    subscribing,
    variables_of,
)

CUSTOMERS = 12


@dataclass
class Stage:
    desk: Desk
    server: Server
    log: object

    def receipts(self):
        with self.desk.ledger.read() as conn:
            return conn.execute(select(push_receipt)).all()


@pytest.fixture(scope="module")
def stage(tmp_path_factory, shared_sandbox, tls) -> Iterator[Stage]:
    """One server for the module, which knows two secrets; each test starts without receipts."""
    folder = tmp_path_factory.mktemp("subscriber")
    with frozen_desk(folder, f"sqlite:///{folder / 'ledger.db'}", as_new(shared_sandbox), CUSTOMERS) as desk:
        variables = variables_of(desk, folder, DIGEST_SUBSCRIBER_PREVIOUS_SECRET=PREVIOUS)
        with subscribing(folder, tls, variables) as server:
            yield Stage(desk, server, folder / "subscriber.log")


@pytest.fixture
def pushed(stage: Stage, sandbox) -> Stage:
    stage.desk.sql("DELETE FROM push_receipt")
    return stage


def arrivals(stage, number):
    return stage.desk.sandbox.oracle().attempts(key_of(number))


def test_a_signed_push_is_sent_and_the_very_same_request_again_is_a_no_op(pushed):
    """SEC-07: replayed within a minute."""
    body, at = body_of(pushed.desk, 1), datetime.now(UTC)
    answers = [pushed.server.push(body, at=at) for _ in range(2)]
    assert [one.status for one in answers] == [200, 200]
    first, second = (json.loads(one.body) for one in answers)
    assert first["message_id"] == second["message_id"]
    assert (first["replayed"], second["replayed"]) == (False, True)
    assert arrivals(pushed, 1) == 1


@pytest.mark.parametrize("off", [timedelta(minutes=-10), timedelta(minutes=10), timedelta(seconds=-310)])
def test_a_signature_of_another_time_is_refused_whichever_way(pushed, off):
    """SEC-07: replayed after ten minutes, and from the future."""
    answer = pushed.server.push(body_of(pushed.desk, 1), at=datetime.now(UTC) + off)
    assert (answer.status, answer.outcome) == (401, "refused")
    assert not pushed.receipts()


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook_timestamp": str(int(datetime.now(UTC).timestamp()) + 5)},
        {"webhook_signature": "v1,AAAA"},
        {"webhook_signature": ""},
        {"webhook_id": "push_of_another"},
        {"webhook_timestamp": "soon"},
    ],
)
def test_an_unsigned_or_edited_push_has_no_effect(pushed, changed):
    """SEC-07: the same body with an edited timestamp."""
    answer = pushed.server.push(body_of(pushed.desk, 1), **changed)
    assert (answer.status, answer.outcome) == (401, "refused")
    assert not pushed.receipts()
    assert arrivals(pushed, 1) == 0


def test_the_previous_secret_is_taken_and_an_unknown_one_is_not(pushed):
    assert pushed.server.push(body_of(pushed.desk, 1), secret=PREVIOUS).status == 200
    assert pushed.server.push(body_of(pushed.desk, 1), secret=SECRET).status == 200
    stranger = "whsec_" + "c3RyYW5nZXI" * 4
    assert pushed.server.push(body_of(pushed.desk, 1), secret=stranger).status == 401


@pytest.mark.parametrize(
    "changed",
    [{"key": ""}, {"key": "a\nb"}, {"key": 1}, {"payload_hash": "x"}, {"digest": 7}, {"to": "a@b.test"}],
)
def test_what_is_signed_but_no_push_is_refused_and_leaves_nothing(pushed, changed):
    answer = pushed.server.push(body_of(pushed.desk, 1, **changed))
    assert (answer.status, answer.outcome) == (400, "refused")
    assert not pushed.receipts()


def test_a_push_signed_under_the_id_of_another_key_is_refused(pushed):
    body = body_of(pushed.desk, 1)
    signed = Signer("s", [SECRET]).headers(message_id_of(key_of(2)), body, datetime.now(UTC))
    assert pushed.server.ask("POST", "/push", body, signed).status == 400
    assert not pushed.receipts()


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_fields = ("key", "digest", "period", "tenant", "customer_id", "payload_hash")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=st.dictionaries(st.sampled_from(_fields), _values, min_size=1), raw=st.binary(max_size=40))
def test_whatever_is_signed_is_judged_and_nothing_ends_in_an_error(pushed, changed, raw):
    """The bodies that only a holder of the secret can send."""
    pushed_body = {**json.loads(body_of(pushed.desk, 1)), **changed}
    for body in (json.dumps(pushed_body).encode(), raw):
        signed = Signer("s", [SECRET])
        try:
            key = str(json.loads(body)["key"])
        except (ValueError, TypeError, KeyError):
            key = ""
        try:
            headers = signed.headers(message_id_of(key), body, datetime.now(UTC))
        except UnicodeError:
            continue  # no text, so nothing that can be signed
        answer = pushed.server.ask("POST", "/push", body, headers)
        assert answer.status in (200, 400, 409, 503), answer.status
        assert answer.status != 503 or answer.outcome == "retry"  # a key that nobody has sealed


def connection_to(server):
    context = ssl.create_default_context(cafile=str(server.tls.ca_file))
    return http.client.HTTPSConnection("localhost", server.port, timeout=SECONDS, context=context)


def test_a_body_that_is_said_to_be_too_large_is_refused_before_it_comes(pushed):
    connection = connection_to(pushed.server)
    connection.putrequest("POST", "/push")
    connection.putheader("Content-Length", str(10**9))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_that_turns_out_too_large_is_refused_whatever_it_said(pushed):
    connection = connection_to(pushed.server)
    chunks = iter([b"x" * 8192] * 3)
    connection.request("POST", "/push", chunks, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert connection.getresponse().status == 413
    connection.close()
    assert not pushed.receipts()


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/push", 405), ("PUT", "/push", 405), ("POST", "/push/", 404), ("GET", "/nothing", 404),
    ("POST", "/events/resend", 404), ("GET", "/content/x", 404), ("GET", "/healthz", 200),
])  # fmt: skip
def test_only_what_is_configured_is_there(pushed, method, path, status):
    assert pushed.server.ask(method, path).status == status


def test_the_document_lists_every_route(pushed):
    found = json.loads(pushed.server.ask("GET", "/openapi.json").body)
    assert set(found["paths"]) == {"/push", "/events/{provider}", "/healthz", "/openapi.json"}


def test_what_nobody_expected_is_a_constant_500_and_nothing_half_applied(pushed):
    pushed.desk.sql("ALTER TABLE push_receipt RENAME TO gone")
    try:
        answer = pushed.server.push(body_of(pushed.desk, 1))
    finally:
        pushed.desk.sql("ALTER TABLE gone RENAME TO push_receipt")
    assert (answer.status, json.loads(answer.body)) == (500, {"outcome": "error"})
    assert arrivals(pushed, 1) == 0
    assert pushed.server.push(body_of(pushed.desk, 1)).status == 200


def send(gateway, envelope):
    async def run():
        async with gateway:
            return await gateway.send(envelope)

    return asyncio.run(run())


def test_a_certificate_of_another_authority_is_no_connection(pushed, tmp_path):
    other = make_tls(tmp_path / "other")
    outcome = send(push_gateway(pushed.server, ca_file=str(other.ca_file)), digest())
    assert isinstance(outcome, NotSent)
    assert outcome.failure_class is FailureClass.CONNECT
    system = send(push_gateway(pushed.server, ca_file=""), digest())
    assert isinstance(system, NotSent)
    named = push_gateway(
        pushed.server, url=f"https://127.0.0.2:{pushed.server.port}", allow_private="127.0.0.0/8"
    )
    assert isinstance(send(named, digest()), NotSent)  # the certificate names another host
    assert not pushed.receipts()


def test_without_permission_a_subscriber_on_this_machine_is_not_reached(pushed):
    """SEC-10."""
    outcome = send(push_gateway(pushed.server, allow_private=""), digest())
    assert isinstance(outcome, AccountRefused)


def test_a_sender_with_a_wrong_secret_halts_and_fails_nobody(pushed):
    outcome = send(push_gateway(pushed.server, secret="whsec_" + "c3RyYW5nZXI" * 4), digest())
    assert isinstance(outcome, AccountRefused)
    assert outcome.detail == "401 refused"


def test_a_period_is_pushed_and_each_message_is_sent_once(pushed):
    """From the pipeline's ledger over TLS to the subscriber, and by its gateway to the provider."""
    done = pushed.desk.deliver(gateway=push_gateway(pushed.server))
    assert done.accepted == CUSTOMERS
    assert_once_each(pushed.desk, range(1, CUSTOMERS + 1))
    rows = pushed.receipts()
    assert {row.state for row in rows} == {"complete"}
    assert {row.message_id for row in rows} == {row.message_id for row in pushed.desk.rows()}


def test_the_log_names_nobody_and_holds_no_secret(pushed):
    pushed.server.push(body_of(pushed.desk, 1))
    pushed.server.push(body_of(pushed.desk, 1), secret="whsec_" + "c3RyYW5nZXI" * 4)
    said = pushed.log.read_text()
    assert "push_refused" in said
    for word in (
        "@example.test",
        "customer-0",
        "Traceback",
        SECRET.removeprefix("whsec_")[:12],
        "webhook-sig",
    ):
        assert word not in said
