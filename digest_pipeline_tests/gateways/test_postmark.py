"""Postmark: what each of its documented answers means, and what is put on the wire."""

import asyncio

import pytest

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import BatchRefused
from digest_pipeline.gateways.postmark import KEY_FIELD, MAX_METADATA_VALUE
from digest_pipeline.gateways.references import digest_reference
from digest_pipeline.outcomes import Absent, Accepted, Found, LookUpFailed, Throttled
from digest_pipeline_tests.gateways.answering import (
    ACCOUNT,
    CONTENT,
    DOUBT,
    RECIPIENT,
    SUPPRESSED,
    Answering,
    plain,
    said,
)
from digest_pipeline_tests.gateways.stands import digest, digests

POSTMARK = Answering("postmark", {"server_token": "pm-4f81-Token"})
KEY = digest().operation_key


def ok(number, to=None):
    return {"ErrorCode": 0, "Message": "OK", "MessageID": number} | ({"To": to} if to else {})


def error(code, message="m"):
    return {"ErrorCode": code, "Message": message}


CODES = [
    (10, ACCOUNT),
    (100, DOUBT),
    (300, CONTENT),
    (400, ACCOUNT),
    (401, ACCOUNT),
    (402, CONTENT),
    (403, CONTENT),
    (405, ACCOUNT),
    (406, SUPPRESSED),
    (409, CONTENT),
    (410, CONTENT),
    (411, CONTENT),
    (412, ACCOUNT),
    (413, ACCOUNT),
    (429, Throttled("")),
    (1235, ACCOUNT),
    (99999, ACCOUNT),
]


@pytest.mark.parametrize(("code", "expected"), CODES)
def test_each_code_means_the_same_alone_and_in_a_batch(code, expected):
    assert plain(POSTMARK.send(said(422, error(code)))) == expected
    assert POSTMARK.send_batch([digest()], said(200, [error(code)])) == [expected]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Invalid 'To' address: 'x'.", RECIPIENT),
        ("Error parsing 'To': Illegal email domain 'x' in address 'y'.", RECIPIENT),
        ("Invalid 'To' address: ''From'@example.test'.", RECIPIENT),
        ("Invalid 'From' address: 'x'.", ACCOUNT),
        ("Error parsing 'Reply-To': Illegal email domain 'x'.", ACCOUNT),
        ("Invalid metadata content.", CONTENT),
        ("Provide either email TextBody or HtmlBody or both.", CONTENT),
    ],
)
def test_an_invalid_request_is_the_fault_of_the_field_it_names(message, expected):
    assert plain(POSTMARK.send(said(422, error(300, message)))) == expected


ANSWERS = [
    (said(200, ok("a1")), Accepted("a1")),
    (said(200, {"ErrorCode": 0, "Message": "OK"}), DOUBT),
    (said(200, {"ErrorCode": "0", "MessageID": "a1"}), DOUBT),
    (
        said(200, {"Message": "Message accepted, but delivery may be delayed.", "MessageID": "a1"}),
        Accepted("a1"),
    ),
    (said(200, error(406)), SUPPRESSED),
    (said(401, error(10)), ACCOUNT),
    (said(404, {}), ACCOUNT),
    (said(413, {}), CONTENT),
    (said(415, {}), ACCOUNT),
    (said(422, {}), ACCOUNT),
    (said(429, error(429)), Throttled("")),
    (said(500, error(-1)), DOUBT),
    (said(503, error(100)), DOUBT),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS)
def test_each_answer_means_what_the_table_says(reply, expected):
    assert plain(POSTMARK.send(reply)) == expected


def test_a_200_holds_a_yes_two_refusals_and_a_doubt():
    """CLS-06."""
    items = [ok("a1"), error(406, "inactive"), error(300, "Invalid 'To' address."), {"ErrorCode": 0}]
    assert POSTMARK.send_batch(digests(4), said(200, items)) == [Accepted("a1"), SUPPRESSED, RECIPIENT, DOUBT]


def test_items_in_an_order_that_their_addresses_deny_are_matched_by_address():
    """DUP-19 (d)."""
    zero, one, two = (ok(f"a{n}", f"Reader {n} <READER-{n}@example.test>") for n in range(3))
    assert POSTMARK.send_batch(digests(3), said(200, [two, one, zero])) == [
        Accepted("a0"),
        Accepted("a1"),
        Accepted("a2"),
    ]
    assert POSTMARK.send_batch(digests(3), said(200, [two, error(406), zero])) == [
        Accepted("a0"),
        DOUBT,
        Accepted("a2"),
    ]
    assert POSTMARK.send_batch(digests(3), said(200, [one, one, zero])) == [Accepted("a0"), DOUBT, DOUBT]


def test_a_batch_refused_as_a_whole_is_no_verdict():
    found = POSTMARK.send_batch(digests(3), said(422, error(403)))
    assert isinstance(found, BatchRefused)
    assert POSTMARK.send_batch(digests(2), said(401, error(10))) == [ACCOUNT] * 2


def test_metadata_holds_the_key_or_its_digest_where_that_is_too_long():
    _, short = POSTMARK.sent_body(digest(), said(200, ok("a1")))
    _, long = POSTMARK.sent_body(digest("9" * 200), said(200, ok("a1")))
    assert short["Metadata"] == {KEY_FIELD: KEY}
    assert long["Metadata"] == {KEY_FIELD: digest_reference(digest("9" * 200).operation_key)}
    assert len(long["Metadata"][KEY_FIELD]) <= MAX_METADATA_VALUE
    assert {"Name": "X-Operation-Key", "Value": digest("9" * 200).operation_key} in long["Headers"]


def test_what_the_provider_writes_itself_is_not_sent_and_the_rest_is():
    head, body = POSTMARK.sent_body(digest(), said(200, ok("a1")))
    assert "X-Postmark-Server-Token: pm-4f81-Token" in head
    assert body["MessageStream"] == "broadcast"
    assert body["ReplyTo"] == "Help Desk <help@sender.test>"
    assert {header["Name"] for header in body["Headers"]} == {
        "List-Id",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "X-Operation-Key",
    }


LISTS = [
    (said(200, {"TotalCount": 0, "Messages": []}), Absent()),
    (said(200, {"Messages": [{"MessageID": "a1", "Metadata": {KEY_FIELD: KEY}}]}), Found("a1")),
    (
        said(200, {"Messages": [{"MessageID": n, "Metadata": {KEY_FIELD: KEY}} for n in "ab"]}),
        Found("a", copies=2),
    ),
    (said(200, {"Messages": [{"Metadata": {KEY_FIELD: KEY}}]}), Found(None)),
]


@pytest.mark.parametrize(("reply", "expected"), LISTS)
def test_a_search_finds_what_carries_the_key(reply, expected):
    assert POSTMARK.look_up(KEY, reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        said(200, {"Messages": [{"MessageID": "a1", "Metadata": {KEY_FIELD: KEY + "0"}}]}),
        said(200, {"Messages": [{"MessageID": "a1"}]}),
        said(200, {"Messages": "none"}),
        said(200, []),
        said(401, error(10)),
        said(500, {}),
    ],
)
def test_a_search_that_does_not_answer_the_question_says_nothing(reply):
    assert isinstance(POSTMARK.look_up(KEY, reply), LookUpFailed)


@pytest.mark.parametrize("stand", ["postmark"], indirect=True)
def test_a_search_sees_the_stream_that_was_sent_through_and_no_other(stand):
    def gateway(stream):
        settings = {"server_token": stand.secrets[0], "url": stand.process.url, "message_stream": stream}
        return registry.create("postmark", settings)

    async def run():
        async with gateway("weekly") as ours, gateway("outbound") as other:
            await ours.send(digest())
            return await ours.look_up(KEY), await other.look_up(KEY)

    found, absent = asyncio.run(run())
    assert isinstance(found, Found)
    assert absent == Absent()
