"""SendGrid: what each of its documented answers means, and what is put on the wire."""

import asyncio
import json
import time

import pytest

from digest_pipeline.gateways import registry
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
from digest_pipeline_tests.gateways.situations import Situation
from digest_pipeline_tests.gateways.stands import digest
from digest_pipeline_tests.harness.raw_http import answer

KEY = digest().operation_key
LOOKING_UP = {"look_up": "true", "visibility_delay": "15m", "look_up_retention": "30d"}
SENDGRID = Answering("sendgrid", {"api_key": "SG.Test.1"})
ASKING = Answering("sendgrid", {"api_key": "SG.Test.1", **LOOKING_UP})
TAKEN = answer(202, b"", "X-Message-Id: Xj5LmNkW\r\n")


def errors(status, *fields, headers=""):
    found = [{"message": "m", "field": field, "help": None} for field in fields]
    return said(status, {"errors": found}, headers)


ANSWERS = [
    (TAKEN, Accepted("Xj5LmNkW")),
    (answer(202, b""), DOUBT),
    (answer(200, b"{}", "X-Message-Id: Xj5LmNkW\r\n"), DOUBT),
    (errors(400, "personalizations.0.to.0.email"), RECIPIENT),
    (errors(400, "personalizations.0.to"), RECIPIENT),
    (errors(400, "personalizations.0.subject"), CONTENT),
    (errors(400, "from.email"), ACCOUNT),
    (errors(400, "from"), ACCOUNT),
    (errors(400, "reply_to.email"), ACCOUNT),
    (errors(400, "template_id"), ACCOUNT),
    (errors(400, "personalizations.0.to.0.email", "from.email"), ACCOUNT),
    (errors(400, "content.0.value", "personalizations.0.to.0.email"), RECIPIENT),
    (errors(400, "content.0.value"), CONTENT),
    (errors(400, None), CONTENT),
    (errors(400, "fromage"), CONTENT),
    (said(400, {"errors": ["m"]}), ACCOUNT),
    (said(400, {"errors": []}), ACCOUNT),
    (errors(401, None), ACCOUNT),
    (errors(402, None), ACCOUNT),
    (errors(403, "from"), ACCOUNT),
    (errors(404, None), ACCOUNT),
    (errors(405, None), ACCOUNT),
    (errors(406, None), ACCOUNT),
    (errors(413, None), CONTENT),
    (errors(429, None), Throttled("")),
    (errors(408, None), DOUBT),
    (errors(500, None), DOUBT),
    (errors(503, None), DOUBT),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS)
def test_each_answer_means_what_the_table_says(reply, expected):
    assert plain(SENDGRID.send(reply)) == expected


def wait_for(headers):
    return SENDGRID.send(errors(429, None, headers=headers)).retry_after


def test_a_limit_without_retry_after_is_waited_for_until_its_reset():
    """CLS-08."""
    soon = int(time.time()) + 600
    assert 0 < wait_for(f"X-RateLimit-Reset: {soon}\r\n") <= 600
    assert wait_for(f"X-RateLimit-Reset: {soon}\r\nRetry-After: 3\r\n") == 3
    assert wait_for("X-RateLimit-Reset: 1392815263\r\n") == 0
    assert wait_for("X-RateLimit-Reset: 99999999999\r\n") == 24 * 3600
    assert wait_for("X-RateLimit-Reset: soon\r\n") is None


def test_forbidden_headers_are_not_sent_and_the_rest_is():
    head, body = SENDGRID.sent_body(digest(), TAKEN)
    assert "Authorization: Bearer SG.Test.1" in head
    assert body["personalizations"] == [
        {"to": [{"email": "reader-1842@example.test", "name": "Reader 1842"}]}
    ]
    assert body["from"] == {"email": "digest@sender.test", "name": "Digest"}
    assert body["reply_to"] == {"email": "help@sender.test", "name": "Help Desk"}
    assert [part["type"] for part in body["content"]] == ["text/plain", "text/html"]
    assert set(body["headers"]) == {
        "Date",
        "Message-ID",
        "List-Id",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "X-Operation-Key",
    }


def test_the_key_stands_in_the_custom_arguments_and_in_a_category_only_where_it_is_asked_for():
    _, body = SENDGRID.sent_body(digest(), TAKEN)
    assert body["custom_args"] == {"operation_key": KEY}
    assert "categories" not in body
    _, body = ASKING.sent_body(digest(), TAKEN)
    assert body["categories"] == [digest_reference(KEY)]


def test_look_ups_are_off_unless_asked_for():
    assert not registry.KINDS["sendgrid"].capabilities.look_up


def in_the_logs(*ids):
    return said(200, {"messages": [{"sg_message_id": number} for number in ids]})


def details(key):
    return said(200, {"sg_message_id": "a", "custom_args": {"operation_key": key}})


def test_a_look_up_finds_what_the_logs_have_under_the_keys_category():
    _, server = ASKING.ask(lambda g: g.look_up(KEY), in_the_logs("Xj5.recvd-1"), details(KEY))
    asked, shown = server.requests
    query = json.loads(asked.partition(b"\r\n\r\n")[2])["query"]
    assert query == f"categories IN ('{digest_reference(KEY)}')"
    assert shown.startswith(b"GET /v3/logs/Xj5.recvd-1 ")


LOGS = [
    ([in_the_logs()], Absent()),
    ([in_the_logs("Xj5.recvd-1"), details(KEY)], Found("Xj5")),
    ([in_the_logs("Xj5.recvd-1", "Yk6.recvd-2"), details(KEY), details(KEY)], Found("Xj5", copies=2)),
]


@pytest.mark.parametrize(("replies", "expected"), LOGS)
def test_each_answer_of_the_logs_means_what_it_says(replies, expected):
    assert ASKING.look_up(KEY, *replies) == expected


@pytest.mark.parametrize(
    "replies",
    [
        [said(200, {})],
        [said(200, {"messages": {}})],
        [said(200, {"messages": [{}]})],
        [said(500, {"messages": []})],
        [said(403, {"errors": []})],
        [in_the_logs("Xj5.recvd-1"), details(KEY + "0")],
        [in_the_logs("Xj5.recvd-1"), said(404, {})],
        [in_the_logs("Xj5.recvd-1"), said(200, {"custom_args": None})],
        [in_the_logs("Xj5.recvd-1", "Yk6.recvd-2"), details(KEY), details("other")],
    ],
)
def test_logs_that_do_not_answer_the_question_say_nothing(replies):
    assert isinstance(ASKING.look_up(KEY, *replies), LookUpFailed)


def test_a_throttled_look_up_says_how_long():
    assert ASKING.look_up(KEY, errors(429, None, headers="Retry-After: 5\r\n")).retry_after == 5


def with_look_ups(stand, act):
    settings = {"api_key": stand.secrets[0], "url": stand.process.url, "time_out": "700ms"}

    async def entered():
        async with registry.create("sendgrid", {**settings, **LOOKING_UP}) as gateway:
            return await act(gateway)

    return asyncio.run(entered())


@pytest.mark.parametrize("stand", ["sendgrid"], indirect=True)
def test_a_look_up_finds_what_was_accepted_without_an_answer_and_nothing_else(stand):
    """DUP-16."""
    stand.arrange(Situation.RESETS_AFTER_ACCEPTING)
    assert plain(with_look_ups(stand, lambda gateway: gateway.send(digest()))) == DOUBT
    found = with_look_ups(stand, lambda gateway: gateway.look_up(KEY))
    assert isinstance(found, Found)
    assert found.copies == 1
    assert with_look_ups(stand, lambda g: g.look_up(digest("another").operation_key)) == Absent()


@pytest.mark.parametrize("stand", ["sendgrid"], indirect=True)
def test_a_look_up_knows_a_message_by_the_id_that_its_send_was_answered_with(stand):
    sent = with_look_ups(stand, lambda gateway: gateway.send(digest()))
    assert with_look_ups(stand, lambda gateway: gateway.look_up(KEY)) == Found(sent.message_id)
