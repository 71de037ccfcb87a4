"""Brevo: what each of its documented answers means, and what is put on the wire."""

import json
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.gateways.brevo import idempotency_key
from digest_pipeline.gateways.references import digest_reference
from digest_pipeline.outcomes import Absent, Accepted, Found, LookUpFailed, Throttled
from digest_pipeline_tests.gateways.answering import (
    ACCOUNT,
    CONTENT,
    DOUBT,
    RECIPIENT,
    Answering,
    plain,
    said,
)
from digest_pipeline_tests.gateways.stands import digest
from digest_pipeline_tests.gateways.test_contract import send

BREVO = Answering("brevo", {"api_key": "xkeysib-1"})
KEYLESS = Answering("brevo", {"api_key": "xkeysib-1", "idempotency": "none"})
KEY = digest().operation_key
TAG = digest_reference(KEY)
TAKEN = said(201, {"messageId": "<1@smtp-relay.mailin.test>"})
SENDER = "Sending has been rejected because the sender you used to@x.test is not valid"


def error(status, code, message="m", headers=""):
    return said(status, {"code": code, "message": message}, headers)


ANSWERS = [
    (TAKEN, Accepted("<1@smtp-relay.mailin.test>")),
    (said(202, {"messageId": "<1@x>"}), Accepted("<1@x>")),
    (said(200, {"messageId": "<1@x>"}), DOUBT),
    (said(201, {}), DOUBT),
    (said(201, {"messageIds": ["<1@x>"]}), DOUBT),
    (error(400, "duplicate_parameter"), Accepted(None, replayed=True)),
    (error(400, "duplicate_request"), DOUBT),
    (error(400, "invalid_parameter", "email is not valid in to"), RECIPIENT),
    (error(400, "invalid_parameter", "sender@x.test is not valid in to"), RECIPIENT),
    (error(400, "missing_parameter", "to is missing"), RECIPIENT),
    (error(400, "invalid_parameter", SENDER), ACCOUNT),
    (error(400, "missing_parameter", "sender is missing"), ACCOUNT),
    (error(400, "invalid_parameter", "valid templateId is required"), ACCOUNT),
    (error(400, "missing_parameter", "subject is missing"), CONTENT),
    (error(400, "invalid_parameter", "headers should be a valid object"), CONTENT),
    (error(400, "out_of_range"), CONTENT),
    (error(400, "bad_request"), CONTENT),
    (error(422, "unprocessable_entity"), CONTENT),
    (error(400, "not_enough_credits"), ACCOUNT),
    (error(400, "account_under_validation"), ACCOUNT),
    (error(400, "permission_denied"), ACCOUNT),
    (error(400, "Strange Code"), ACCOUNT),
    (error(401, "unauthorized", "Key not found"), ACCOUNT),
    (error(402, "not_enough_credits"), ACCOUNT),
    (error(403, "permission_denied"), ACCOUNT),
    (error(404, "document_not_found"), ACCOUNT),
    (error(405, "method_not_allowed"), ACCOUNT),
    (error(406, "not_acceptable"), ACCOUNT),
    (error(413, ""), CONTENT),
    (error(429, "too_many_requests"), Throttled("")),
    (error(408, ""), DOUBT),
    (error(500, "internal_error"), DOUBT),
    (error(503, "service_unavailable"), DOUBT),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS)
def test_each_answer_means_what_the_table_says(reply, expected):
    assert plain(BREVO.send(reply)) == expected


def test_a_duplicate_is_no_acceptance_of_a_message_that_went_without_a_key():
    assert plain(KEYLESS.send(error(400, "duplicate_parameter"))) == CONTENT


def test_a_limit_without_retry_after_is_waited_for_as_its_reset_says():
    """CLS-08."""
    limited = "too_many_requests"
    assert BREVO.send(error(429, limited, headers="x-sib-ratelimit-reset: 7\r\n")).retry_after == 7
    both = "x-sib-ratelimit-reset: 7\r\nRetry-After: 3\r\n"
    assert BREVO.send(error(429, limited, headers=both)).retry_after == 3


def test_the_key_stands_in_the_custom_header_in_a_tag_and_as_a_uuid():
    _, body = BREVO.sent_body(digest(), TAKEN)
    assert body["tags"] == [TAG]
    assert body["headers"]["X-Mailin-custom"] == KEY
    assert body["headers"]["X-Operation-Key"] == KEY
    assert body["headers"]["idempotencyKey"] == idempotency_key(KEY)
    assert "idempotencyKey" not in KEYLESS.sent_body(digest(), TAKEN)[1]["headers"]


@given(st.text(min_size=1, max_size=256), st.text(min_size=1, max_size=256))
def test_a_keys_uuid_is_a_uuid_always_the_same_and_no_other_keys(one, other):
    assert UUID(idempotency_key(one)).version == 4
    assert (idempotency_key(one) == idempotency_key(other)) is (one == other)


def test_what_the_provider_writes_itself_is_not_sent_and_the_rest_is():
    head, body = BREVO.sent_body(digest(), TAKEN)
    assert "api-key: xkeysib-1" in head
    assert body["sender"] == {"email": "digest@sender.test", "name": "Digest"}
    assert body["to"] == [{"email": "reader-1842@example.test", "name": "Reader 1842"}]
    assert body["replyTo"] == {"email": "help@sender.test", "name": "Help Desk"}
    assert set(body["headers"]) == {
        "List-Id",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "X-Operation-Key",
        "X-Mailin-custom",
        "idempotencyKey",
    }


def event(tag=TAG, message_id="<1@x>"):
    return {"email": "a@b.test", "event": "requests", "messageId": message_id, "tag": tag}


LISTS = [
    (said(200, {}), Absent()),
    (said(200, {"events": []}), Absent()),
    (said(200, {"events": [event()]}), Found("<1@x>")),
    (said(200, {"events": [event(), event(message_id="<2@x>")]}), Found("<1@x>", copies=2)),
    (said(200, {"events": [event(message_id=None)]}), Found(None)),
]


@pytest.mark.parametrize(("reply", "expected"), LISTS)
def test_a_look_up_finds_what_has_the_tag(reply, expected):
    assert BREVO.look_up(KEY, reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        said(200, {"events": [event("other")]}),
        said(200, {"events": [{"messageId": "<1@x>"}]}),
        said(200, {"events": [7]}),
        said(200, {"events": {}}),
        said(200, {"events": None}),
        said(200, {"code": "unauthorized"}),
        said(200, []),
        said(400, {"code": "invalid_parameter"}),
        said(500, {}),
    ],
)
def test_a_look_up_that_does_not_answer_the_question_says_nothing(reply):
    assert isinstance(BREVO.look_up(KEY, reply), LookUpFailed)


def test_a_throttled_look_up_says_how_long():
    assert BREVO.look_up(KEY, said(429, {}, "Retry-After: 5\r\n")).retry_after == 5


@pytest.mark.parametrize(("retention", "days"), [("30d", "30"), ("36h", "2"), ("365d", "90")])
def test_a_look_up_asks_for_the_tag_as_far_back_as_it_may(retention, days):
    kept = Answering("brevo", {"api_key": "xkeysib-1", "look_up_retention": retention})
    _, server = kept.ask(lambda gateway: gateway.look_up(KEY), LISTS[0][0])
    query = parse_qs(urlsplit(server.requests[0].split()[1].decode()).query)
    assert json.loads(query["tags"][0]) == [TAG]
    assert (query["days"], query["event"]) == ([days], ["requests"])


@pytest.mark.parametrize("stand", ["brevo"], indirect=True)
def test_a_key_is_refused_whatever_the_bytes_are_and_only_within_its_lifetime(stand):
    """DUP-34."""
    first, changed = send(stand, digest(), digest(text="changed"))
    assert isinstance(first, Accepted)
    assert changed == Accepted(None, replayed=True)
    stand.process.control.change(key_lifetime=0.0)
    try:
        (late,) = send(stand, digest())
    finally:
        stand.process.control.change(key_lifetime=stand.process.settings.key_lifetime)
    assert isinstance(late, Accepted)
    assert not late.replayed
    assert stand.accepted(KEY) == 2
