"""Mailgun: what each of its documented answers means, and what is put on the wire."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pytest

from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.references import digest_reference
from digest_pipeline.outcomes import Absent, Accepted, AccountRefused, Found, LookUpFailed, Throttled
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
from digest_pipeline_tests.harness.raw_http import answer

SETTINGS = {"api_key": "key-1", "domain": "mg.sender.test"}
MAILGUN = Answering("mailgun", SETTINGS)
KEY = digest().operation_key
TAG = digest_reference(KEY)
TAKEN = said(200, {"id": "<2026.1@mg.sender.test>", "message": "Queued. Thank you."})


def error(status, message):
    return said(status, {"message": message})


ANSWERS = [
    (TAKEN, Accepted("<2026.1@mg.sender.test>")),
    (said(200, {"id": "2026.1@mg.sender.test"}), Accepted("<2026.1@mg.sender.test>")),
    (said(200, {"message": "Queued. Thank you."}), DOUBT),
    (said(200, {"id": 7}), DOUBT),
    (answer(200, b"Mailgun Magnificent API"), ACCOUNT),
    (error(400, "'to' parameter is not a valid address. please check documentation"), RECIPIENT),
    (error(400, "to parameter is not a valid address. please check documentation."), RECIPIENT),
    (error(400, "'to' parameter is not a valid address: sandbox@disabled.example"), RECIPIENT),
    (error(400, "'from' parameter is not a valid address. please check documentation"), ACCOUNT),
    (error(400, "from parameter is missing"), ACCOUNT),
    (error(400, "Sandbox subdomains are for test purposes only. Please add your own domain"), ACCOUNT),
    (error(400, "Send options (parameters starting with o:, h:, or v:) are limited to 16KB total"), CONTENT),
    (error(400, "Need at least one of 'text', 'html' parameters specified"), CONTENT),
    (said(400, {}), ACCOUNT),
    (answer(401, b"Forbidden"), ACCOUNT),
    (error(402, "Account is disabled"), ACCOUNT),
    (error(403, "Domain mg.sender.test is not allowed to send: it is disabled"), ACCOUNT),
    (error(404, "Domain not found: mg.sender.test"), ACCOUNT),
    (error(413, "Request Entity Too Large"), CONTENT),
    (error(429, "Too many requests"), Throttled("")),
    (error(408, "Timeout"), DOUBT),
    (error(500, "Internal Server Error"), DOUBT),
    (error(503, "Service Unavailable"), DOUBT),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS)
def test_each_answer_means_what_the_table_says(reply, expected):
    assert plain(MAILGUN.send(reply)) == expected


def test_a_limit_is_waited_for_as_its_text_says_where_no_header_does():
    """CLS-08."""
    limited = {"message": "Domain x is not allowed to send: limit exceeded, try again after 120 seconds"}
    assert MAILGUN.send(said(429, limited)).retry_after == 120
    assert MAILGUN.send(said(429, limited, "Retry-After: 3\r\n")).retry_after == 3
    assert MAILGUN.send(said(429, {"message": "later"})).retry_after is None


def test_the_pair_that_the_key_is_sent_in_is_not_shown_either():
    """SEC-01."""
    outcome = MAILGUN.send(error(403, "no access for YXBpOmtleS0x"))
    assert outcome == AccountRefused("403 no access for <hidden>")


def sent(envelope):
    """Return the head of the request for one message, and its form by name."""
    _, server = MAILGUN.ask(lambda gateway: gateway.send(envelope), TAKEN)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    boundary = b"--" + head.partition(b"boundary=")[2].partition(b"\r\n")[0]
    assert body.endswith(b"\r\n" + boundary + b"--\r\n")
    parts = (b"\r\n" + body).split(b"\r\n" + boundary)[1:-1]
    named = [part.removeprefix(b"\r\n").partition(b"\r\n\r\n") for part in parts]
    return head.decode(), {
        name.partition(b'"')[2].partition(b'"')[0].decode(): text for name, _, text in named
    }


def test_the_message_is_the_wire_form_and_the_form_names_the_one_recipient():
    envelope = digest()
    head, form = sent(envelope)
    assert head.startswith("POST /v3/mg.sender.test/messages.mime ")
    assert "Authorization: Basic YXBpOmtleS0x" in head
    assert form == {
        "to": envelope.recipient.encode(),
        "o:tag": TAG.encode(),
        "v:operation_key": KEY.encode(),
        "message": to_mime(envelope.message, envelope.recipient),
    }


@pytest.mark.parametrize("text", ["a\n.\nb", "\r\n--form-\r\n--\r\n", "x" * 2000, "--" + "form-" * 9 + "--"])
def test_no_content_ends_its_part_of_the_form(text):
    """INP-12."""
    envelope = digest(text=text)
    _, form = sent(envelope)
    assert form["message"] == to_mime(envelope.message, envelope.recipient)


def test_the_same_message_is_the_same_request():
    """SEC-06."""
    one, two = (MAILGUN.ask(lambda g: g.send(digest()), TAKEN)[1].requests[0] for _ in range(2))
    assert one.partition(b"\r\n\r\n")[2] == two.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("stand", ["mailgun"], indirect=True)
def test_headers_that_are_options_never_reach_the_wire(stand):
    plain_digest = digest()
    headers = (*plain_digest.message.headers, ("X-Mailgun-Drop-Message", "yes"))
    envelope = replace(plain_digest, message=replace(plain_digest.message, headers=headers))

    async def send():
        async with stand.gateway() as gateway:
            return await gateway.send(envelope)

    assert plain(asyncio.run(send())) == CONTENT
    assert stand.arrivals(envelope.operation_key) == 0


def test_a_message_without_a_wire_form_is_refused_before_the_wire():
    envelope = digest()
    broken = replace(envelope, message=replace(envelope.message, headers=(("X-A", "é"),)))
    outcome, server = MAILGUN.ask(lambda gateway: gateway.send(broken), TAKEN)
    assert plain(outcome) == CONTENT
    assert server.requests == []


def item(*tags, message_id="2026.1@mg.sender.test"):
    return {"event": "accepted", "tags": list(tags), "message": {"headers": {"message-id": message_id}}}


LISTS = [
    (said(200, {"items": []}), Absent()),
    (said(200, {"items": [item(TAG)]}), Found("<2026.1@mg.sender.test>")),
    (said(200, {"items": [item("other", TAG)]}), Found("<2026.1@mg.sender.test>")),
    (said(200, {"items": [item(TAG), item(TAG)]}), Found("<2026.1@mg.sender.test>", copies=2)),
    (said(200, {"items": [{"tags": [TAG]}]}), Found(None)),
]


@pytest.mark.parametrize(("reply", "expected"), LISTS)
def test_a_look_up_finds_what_has_the_tag(reply, expected):
    assert MAILGUN.look_up(KEY, reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        said(200, {"items": [item("other")]}),
        said(200, {"items": [{"tags": TAG}]}),
        said(200, {"items": ["x"]}),
        said(200, {"items": None}),
        said(200, {}),
        said(400, {"message": "unknown attribute"}),
        said(401, {}),
        said(500, {"items": []}),
    ],
)
def test_a_look_up_that_does_not_answer_the_question_says_nothing(reply):
    assert isinstance(MAILGUN.look_up(KEY, reply), LookUpFailed)


def test_a_throttled_look_up_says_how_long():
    assert MAILGUN.look_up(KEY, said(429, {}, "Retry-After: 5\r\n")).retry_after == 5


def test_a_look_up_asks_for_the_domain_and_the_tag_as_far_back_as_logs_are_kept():
    kept = Answering("mailgun", {**SETTINGS, "look_up_retention": "30d"})
    _, server = kept.ask(lambda gateway: gateway.look_up(KEY), LISTS[0][0])
    body = json.loads(server.requests[0].partition(b"\r\n\r\n")[2])
    conditions = {one["attribute"]: one["values"][0]["value"] for one in body["filter"]["AND"]}
    assert conditions == {"domain": "mg.sender.test", "tag": TAG}
    back = datetime.now(UTC) - parsedate_to_datetime(body["start"])
    assert timedelta(days=30) <= back < timedelta(days=30, minutes=10)
    assert body["events"] == ["accepted"]


def test_each_domain_is_an_account_of_its_own():
    one, other = (registry.create("mailgun", {**SETTINGS, "domain": d}) for d in ("a.test", "b.test"))
    assert one.account != other.account


@pytest.mark.parametrize("domain", ["a/b", "mg.sender.test/messages?", "%2f", "", ".test", "mg sender"])
def test_a_domain_that_would_change_the_address_is_refused(domain):
    with pytest.raises(SpecError, match="domain"):
        registry.create("mailgun", {**SETTINGS, "domain": domain})
