"""Resend: what each of its documented answers means, and what is put on the wire."""

import asyncio

import pytest

from digest_pipeline.gateways.base import BatchRefused
from digest_pipeline.gateways.references import key_of
from digest_pipeline.gateways.resend import KEY_TAG
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.outcomes import Accepted, Ambiguous, Throttled
from digest_pipeline_tests.gateways.answering import (
    ACCOUNT,
    CONTENT,
    DOUBT,
    INTEGRITY,
    RECIPIENT,
    Answering,
    plain,
    said,
)
from digest_pipeline_tests.gateways.stands import digest, digests

RESEND = Answering("resend", {"api_key": "re_Test_7Qp3kVx1"})


def error(status, name, message="m"):
    return said(status, {"statusCode": status, "name": name, "message": message})


ANSWERS = [
    (said(200, {"id": "4f"}), Accepted("4f")),
    (said(200, {"id": None}), DOUBT),
    (said(200, [{"id": "4f"}]), DOUBT),
    (error(400, "validation_error", "Invalid `to` field. The address must be valid."), RECIPIENT),
    (error(422, "validation_error", "Invalid `to` field."), RECIPIENT),
    (error(422, "validation_error", "Invalid `to` field: domain.verify+`from`@example.test"), RECIPIENT),
    (error(422, "validation_error", "Invalid `from` field."), ACCOUNT),
    (error(422, "validation_error", "Invalid `subject` field."), CONTENT),
    (error(422, "missing_required_field", "Missing `html` or `text` field."), CONTENT),
    (error(422, "missing_required_field", "Missing `to` field."), RECIPIENT),
    (error(422, "invalid_from_address"), ACCOUNT),
    (error(422, "invalid_attachment"), CONTENT),
    (error(400, "validation_error", "API key is invalid"), ACCOUNT),
    (error(401, "missing_api_key"), ACCOUNT),
    (error(401, "restricted_api_key"), ACCOUNT),
    (error(403, "invalid_api_key"), ACCOUNT),
    (error(403, "validation_error", "The example.test domain is not verified."), ACCOUNT),
    (error(403, "validation_error", "You can only send testing emails to your own address."), ACCOUNT),
    (error(404, "not_found"), ACCOUNT),
    (error(405, "method_not_allowed"), ACCOUNT),
    (error(409, "invalid_idempotent_request"), INTEGRITY),
    (error(409, "concurrent_idempotent_requests"), DOUBT),
    (error(409, "something_else"), DOUBT),
    (error(413, ""), CONTENT),
    (error(429, "rate_limit_exceeded"), Throttled("")),
    (error(429, "daily_quota_exceeded"), ACCOUNT),
    (error(429, "monthly_quota_exceeded"), ACCOUNT),
    (error(451, "security_error"), ACCOUNT),
    (error(500, "application_error"), DOUBT),
    (error(500, "internal_server_error"), DOUBT),
    (error(503, "service_unavailable"), DOUBT),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS)
def test_each_answer_means_what_the_table_says(reply, expected):
    assert plain(RESEND.send(reply)) == expected


def test_a_limit_without_retry_after_is_waited_for_as_its_reset_says():
    """CLS-08."""
    limited = {"name": "rate_limit_exceeded", "message": "m"}
    assert RESEND.send(said(429, limited, "ratelimit-reset: 7\r\n")).retry_after == 7
    assert RESEND.send(said(429, limited, "ratelimit-reset: 7\r\nretry-after: 3\r\n")).retry_after == 3


BATCHES = [
    ({"data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}, [Accepted("a"), Accepted("b"), Accepted("c")]),
    (
        {"data": [{"id": "a"}, {"id": "c"}], "errors": [{"index": 1, "message": "Invalid `to` field."}]},
        [Accepted("a"), RECIPIENT, Accepted("c")],
    ),
    (
        {"data": [{"id": "a"}], "errors": [{"index": 2, "message": "Invalid `to` field."}]},
        [DOUBT, DOUBT, RECIPIENT],
    ),
    (
        {"data": [{"id": "a"}, {"id": "b"}], "errors": [{"index": 7, "message": "Invalid `to` field."}]},
        [DOUBT, DOUBT, DOUBT],
    ),
    (
        {"data": [{"id": "a"}, {}], "errors": [{"index": 0, "message": "Missing `html` or `text` field."}]},
        [CONTENT, Accepted("a"), DOUBT],
    ),
    (
        {
            "data": [],
            "errors": [{"index": n, "message": "not a verified domain, verify it"} for n in range(3)],
        },
        None,
    ),
    ({"data": "none"}, [DOUBT] * 3),
    ({}, [DOUBT] * 3),
]


@pytest.mark.parametrize(("body", "expected"), BATCHES)
def test_a_batch_is_read_by_index_and_order_and_only_where_both_add_up(body, expected):
    """CLS-06, DUP-19."""
    assert RESEND.send_batch(digests(3), said(200, body)) == (expected or [ACCOUNT] * 3)


@pytest.mark.parametrize("status", [400, 422])
def test_a_batch_refused_for_one_of_its_messages_is_no_verdict(status):
    found = RESEND.send_batch(digests(3), error(status, "validation_error", "Invalid `to` field."))
    assert isinstance(found, BatchRefused)
    assert plain(found.alone) == RECIPIENT


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error(409, "invalid_idempotent_request"), INTEGRITY),
        (error(429, "daily_quota_exceeded"), ACCOUNT),
        (error(429, "rate_limit_exceeded"), Throttled("")),
        (error(500, "application_error"), DOUBT),
    ],
)
def test_what_is_about_the_call_or_the_account_is_said_to_every_message(reply, expected):
    assert RESEND.send_batch(digests(2), reply) == [expected] * 2


def test_the_key_stands_in_the_idempotency_header_in_a_tag_and_in_a_header():
    sent = digest()
    head, body = RESEND.sent_body(sent, said(200, {"id": "a"}))
    assert f"Idempotency-Key: {sent.operation_key}\r\n" in head + "\r\n"
    (tag,) = body["tags"]
    assert (tag["name"], key_of(tag["value"])) == (KEY_TAG, sent.operation_key)
    assert body["headers"]["X-Operation-Key"] == sent.operation_key


def test_what_the_provider_writes_itself_is_not_sent_and_the_rest_is():
    _, body = RESEND.sent_body(digest(), said(200, {"id": "a"}))
    assert body["to"] == ["Reader 1842 <reader-1842@example.test>"]
    assert body["reply_to"] == ["Help Desk <help@sender.test>"]
    assert set(body["headers"]) == {
        "List-Id",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "X-Operation-Key",
    }


def test_a_batch_goes_under_its_own_key_and_is_validated_one_by_one():
    _, server = RESEND.ask(
        lambda gateway: gateway.send_batch(digests(2), "batch-7"),
        said(200, {"data": [{"id": "a"}, {"id": "b"}], "errors": []}),
    )
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode()
    assert "Idempotency-Key: batch-7" in head
    assert "x-batch-validation: permissive" in head


@pytest.mark.parametrize("stand", ["resend"], indirect=True)
def test_a_key_that_is_still_in_flight_is_ambiguous_without_alarm(stand):
    """CLS-11."""
    control = stand.process.control

    async def two_at_once():
        async with stand.gateway() as gateway:
            first = asyncio.create_task(gateway.send(digest()))
            await asyncio.to_thread(control.wait, accepted=1)
            second = await gateway.send(digest())
            await asyncio.to_thread(control.release)
            return await first, second

    control.script(Rule(Fault.HELD_AFTER_ACCEPT, next=1))
    _, second = asyncio.run(two_at_once())
    assert isinstance(second, Ambiguous)
    assert not second.integrity
    assert stand.accepted(digest().operation_key) == 1
