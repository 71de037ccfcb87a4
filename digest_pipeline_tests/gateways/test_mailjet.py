"""Mailjet: what each of its documented answers means, and what is put on the wire."""

import pytest

from digest_pipeline.gateways.base import BatchRefused
from digest_pipeline.gateways.mailjet import MAX_CUSTOM_ID
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
from digest_pipeline_tests.gateways.stands import digest, digests

MAILJET = Answering("mailjet", {"api_key": "mj-public", "secret_key": "mj-private"})
KEY = digest().operation_key
BIG = 70650219165027410


def ok(number, custom_id=None):
    named = {"CustomID": custom_id} if custom_id is not None else {}
    return {"Status": "success", "To": [{"Email": "x", "MessageID": number}], **named}


def error(code, status=400, related=(), message="m"):
    return {"ErrorCode": code, "StatusCode": status, "ErrorMessage": message, "ErrorRelatedTo": list(related)}


def failed(*errors):
    return {"Status": "error", "Errors": list(errors)}


ITEMS = [
    (ok(BIG), Accepted(str(BIG))),
    (ok(None), DOUBT),
    ({"Status": "success", "To": []}, DOUBT),
    ({"Status": "success"}, DOUBT),
    ({"Status": "queued"}, DOUBT),
    ({"Status": "error"}, DOUBT),
    ({"Status": "error", "Errors": []}, DOUBT),
    ({"Status": "error", "Errors": [7]}, DOUBT),
    ("success", DOUBT),
    (failed(error("mj-0013", related=["To[0].Email"])), RECIPIENT),
    (failed(error("mj-0013", related=["From.Email"])), ACCOUNT),
    (failed(error("mj-0013", related=["Cc[0].Email"])), CONTENT),
    (failed(error("mj-0003", related=["To"])), RECIPIENT),
    (failed(error("mj-0006", related=["Subject"])), CONTENT),
    (failed(error("send-0003", related=["HTMLPart", "TextPart"])), CONTENT),
    (failed(error("send-0011", related=['Headers["Date"]'])), CONTENT),
    (failed(error("send-0008", 403, ["From"])), ACCOUNT),
    (failed(error("send-0006", 403)), ACCOUNT),
    (failed(error("mj-0001", 401)), ACCOUNT),
    (failed(error("new-code", 403)), ACCOUNT),
    (failed(error("new-code", 400)), CONTENT),
    (failed(error("new-code", 429)), Throttled("")),
    (failed(error("new-code", 500)), DOUBT),
    (failed(error("new-code", "400")), DOUBT),
    (failed(error("mj-0013", related=["To[0].Email"]), error("send-0008", 403, ["From"])), ACCOUNT),
    (failed(error("mj-0006", related=["Subject"]), error("mj-0013", related=["To"])), RECIPIENT),
]


@pytest.mark.parametrize(("item", "expected"), ITEMS)
def test_each_item_means_what_the_table_says_whatever_the_status_of_the_call(item, expected):
    for status in (200, 400):
        assert plain(MAILJET.send(said(status, {"Messages": [item]}))) == expected


ANSWERS = [
    (said(200, {}), DOUBT),
    (said(200, {"Messages": []}), DOUBT),
    (said(201, {"Messages": "none"}), DOUBT),
    (said(400, error("mj-0002")), CONTENT),
    (said(400, error("mj-0011")), CONTENT),
    (said(400, {}), ACCOUNT),
    (said(401, error("mj-0015", 401)), ACCOUNT),
    (said(400, error("mj-0001", 401)), ACCOUNT),
    (said(403, {}), ACCOUNT),
    (said(413, {}), CONTENT),
    (said(429, {}), Throttled("")),
    (said(429, {"Messages": [ok(BIG)]}), Accepted(str(BIG))),
    (said(500, {"Messages": [failed(error("mj-0013", related=["To"]))]}), DOUBT),
    (said(500, {"ErrorIdentifier": "x", "StatusCode": 500}), DOUBT),
    (said(503, {}), DOUBT),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS)
def test_each_answer_about_the_call_means_what_the_table_says(reply, expected):
    assert plain(MAILJET.send(reply)) == expected


def test_a_batch_holds_a_yes_two_refusals_and_a_doubt():
    """CLS-06."""
    items = [
        ok(1),
        failed(error("send-0003")),
        failed(error("mj-0013", related=["To"])),
        {"Status": "success"},
    ]
    assert MAILJET.send_batch(digests(4), said(400, {"Messages": items})) == [
        Accepted("1"),
        CONTENT,
        RECIPIENT,
        DOUBT,
    ]


def test_items_in_an_order_that_their_custom_ids_deny_are_matched_by_custom_id():
    """DUP-19 (d)."""
    keys = [sent.operation_key for sent in digests(3)]
    zero, one, two = (ok(n + 1, key) for n, key in enumerate(keys))
    refused = failed(error("mj-0013", related=["To"]))
    assert MAILJET.send_batch(digests(3), said(200, {"Messages": [two, one, zero]})) == [
        Accepted("1"),
        Accepted("2"),
        Accepted("3"),
    ]
    assert MAILJET.send_batch(digests(3), said(400, {"Messages": [two, refused, zero]})) == [
        Accepted("1"),
        DOUBT,
        Accepted("3"),
    ]
    assert MAILJET.send_batch(digests(3), said(200, {"Messages": [zero, one]})) == [
        Accepted("1"),
        Accepted("2"),
        DOUBT,
    ]


def test_a_batch_refused_as_a_whole_is_no_verdict():
    found = MAILJET.send_batch(digests(3), said(400, error("mj-0011")))
    assert isinstance(found, BatchRefused)
    assert plain(found.alone) == CONTENT
    assert MAILJET.send_batch(digests(2), said(401, error("mj-0015", 401))) == [ACCOUNT] * 2


def test_the_custom_id_is_the_key_or_its_digest_where_that_is_too_long():
    _, short = MAILJET.sent_body(digest(), said(200, {"Messages": [ok(1)]}))
    _, long = MAILJET.sent_body(digest("9" * 200), said(200, {"Messages": [ok(1)]}))
    assert short["Messages"][0]["CustomID"] == KEY
    assert long["Messages"][0]["CustomID"] == digest_reference(digest("9" * 200).operation_key)
    assert len(long["Messages"][0]["CustomID"]) <= MAX_CUSTOM_ID


def test_forbidden_headers_are_not_sent_and_the_rest_is():
    head, body = MAILJET.sent_body(digest(), said(200, {"Messages": [ok(1)]}))
    (message,) = body["Messages"]
    assert "Authorization: Basic bWotcHVibGljOm1qLXByaXZhdGU=" in head
    assert message["From"] == {"Name": "Digest", "Email": "digest@sender.test"}
    assert message["To"] == [{"Name": "Reader 1842", "Email": "reader-1842@example.test"}]
    assert message["ReplyTo"] == {"Name": "Help Desk", "Email": "help@sender.test"}
    assert set(message["Headers"]) == {"List-Unsubscribe", "List-Unsubscribe-Post", "X-Operation-Key"}


LISTS = [
    (said(200, {"Count": 0, "Data": [], "Total": 0}), Absent()),
    (said(200, {"Data": [{"ID": BIG, "CustomID": KEY}]}), Found(str(BIG))),
    (said(200, {"Data": [{"ID": 1, "CustomID": KEY}, {"ID": 2, "CustomID": KEY}]}), Found("1", copies=2)),
    (said(200, {"Data": [{"CustomID": KEY}]}), Found(None)),
]


@pytest.mark.parametrize(("reply", "expected"), LISTS)
def test_a_look_up_finds_what_has_the_custom_id(reply, expected):
    assert MAILJET.look_up(KEY, reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        said(200, {"Data": [{"ID": 1, "CustomID": KEY + "0"}]}),
        said(200, {"Data": [{"ID": 1}]}),
        said(200, {"Data": {}}),
        said(401, {}),
        said(500, {"Data": []}),
    ],
)
def test_a_look_up_that_does_not_answer_the_question_says_nothing(reply):
    assert isinstance(MAILJET.look_up(KEY, reply), LookUpFailed)


def test_a_throttled_look_up_says_how_long():
    assert MAILJET.look_up(KEY, said(429, {}, "Retry-After: 5\r\n")).retry_after == 5
