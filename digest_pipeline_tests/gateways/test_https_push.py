"""The https_push gateway: what it signs, where it connects, and what it makes of answers."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from digest_pipeline.content.message import payload_hash
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.https_push import HttpsPushGateway
from digest_pipeline.gateways.https_push_network import Guard, checked_url
from digest_pipeline.gateways.signing import Signer
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Refused,
    Throttled,
)
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
from digest_pipeline_tests.gateways.stands import digest
from digest_pipeline_tests.gateways.stands_push import LOCAL, PREVIOUS, SECRET
from digest_pipeline_tests.harness.raw_http import answer, raw_server

NOW = datetime(2026, 10, 19, 6, 0, 0, tzinfo=UTC)
COMPLETE = said(200, {"outcome": "complete", "message_id": "m-1", "replayed": False})
pushing = Answering("https_push", LOCAL)


def parts(request):
    """Return the headers, by their names in lower case, and the body of a raw request."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}, body


def verified(headers, body, secret):
    """Return whether the signature is one over these bytes, worked out by hand."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{expected}" in headers["webhook-signature"].split(" ")


def _the_same(instant: datetime) -> datetime:
    return instant


def pushed_at(*instants, envelope, secrets=(SECRET,)):
    """Return what a server saw of one push at each of these instants."""

    async def run():
        async with raw_server([COMPLETE]) as server:
            for instant in instants:
                url = checked_url(server.url)
                guard, signer = Guard(str(url.host), ["127.0.0.1"]), Signer("secret", secrets)
                async with HttpsPushGateway(url, signer, guard, now=partial(_the_same, instant)) as gateway:
                    assert isinstance(await gateway.send(envelope), Accepted)
            return [parts(request) for request in server.requests]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (COMPLETE, Accepted("m-1")),
        (said(200, {"outcome": "complete", "message_id": None, "replayed": True}), Accepted(None, replayed=True)),
        (said(200, {"outcome": "busy"}), DOUBT),
        (said(200, {}), DOUBT),
        (said(409, {"outcome": "busy"}, "Retry-After: 3\r\n"), DOUBT),
        (said(409, {"outcome": "unknown"}), DOUBT),
        (said(409, {"outcome": "integrity"}), INTEGRITY),
        (said(422, {"outcome": "rejected", "class": "recipient"}), RECIPIENT),
        (said(422, {"outcome": "rejected", "class": "recipient", "suppressed": True}),
         Refused(FailureClass.RECIPIENT, "", suppressed=True)),
        (said(422, {"outcome": "rejected", "class": "content"}), CONTENT),
        (said(422, {"outcome": "rejected", "class": "account"}), ACCOUNT),
        (said(429, {"outcome": "throttled"}, "Retry-After: 7\r\n"), Throttled("", 7.0)),
        (said(400, {"outcome": "refused"}), ACCOUNT),
        (said(401, {"outcome": "refused"}), ACCOUNT),
        (said(404, {"outcome": "refused"}), ACCOUNT),
        (said(413, {"outcome": "refused"}), ACCOUNT),
        (said(503, {"outcome": "halted"}), ACCOUNT),
        (said(503, {"outcome": "something"}), DOUBT),
        (said(500, {"outcome": "error"}), DOUBT),
        (said(500, {"outcome": "retry"}), DOUBT),
    ],
)  # fmt: skip
def test_every_answer_of_a_subscriber_has_its_outcome(wire, expected):
    assert plain(pushing.send(wire)) == expected


def test_only_the_subscribers_own_word_proves_that_it_has_not_sent():
    outcome = pushing.send(said(503, {"outcome": "retry"}, "Retry-After: 20\r\n"))
    assert isinstance(outcome, NotSent)
    assert (outcome.failure_class, outcome.retry_after) == (FailureClass.TRANSIENT, 20.0)
    assert isinstance(pushing.send(answer(503, b"<html>")), Ambiguous)


def test_nothing_of_an_answers_body_is_repeated():
    """SEC-10."""
    body = {"outcome": "rejected", "class": "content", "message": "root:x:0:0 10.0.0.5 reader@example.test"}
    for status in (200, 400, 401, 409, 422, 500, 503):
        shown = repr(pushing.send(said(status, body)))
        assert not re.search("root|10.0.0.5|reader", shown)


def test_a_push_names_the_frozen_message_and_nothing_that_is_in_it():
    sent = digest(recipient="very.personal@example.test", text="confidential é")
    _, body = pushing.sent_body(sent, COMPLETE)
    assert body == {
        "key": "customer_digest:2026-W42:customer-1842",
        "digest": "customer_digest",
        "period": "2026-W42",
        "tenant": "default",
        "customer_id": "customer-1842",
        "payload_hash": payload_hash(sent.message.to_bytes()),
    }


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("report:2026-10-14:a%2Fb%3A%25/c%2B7", ("report", "2026-10-14", "a/b:%", "c+7")),
        ("#" + "0f" * 32, (None, None, None, None)),
    ],
)
def test_a_push_takes_its_names_from_the_key_where_that_has_them(key, expected):
    _, body = pushing.sent_body(replace(digest(), operation_key=key), COMPLETE)
    assert tuple(body[name] for name in ("digest", "period", "tenant", "customer_id")) == expected
    assert body["key"] == key


def test_a_retry_has_the_same_body_and_id_and_a_signature_of_its_own_time():
    """SEC-06: the raw bytes verify, then and an hour later."""
    first, second = pushed_at(NOW, NOW + timedelta(hours=1), envelope=digest(text="{'n':'é','v':1.0,'z':[]}"))
    assert first[1] == second[1]
    assert first[0]["webhook-id"] == second[0]["webhook-id"]
    assert int(second[0]["webhook-timestamp"]) - int(first[0]["webhook-timestamp"]) == 3600
    assert first[0]["webhook-signature"] != second[0]["webhook-signature"]
    assert all(verified(headers, body, SECRET) for headers, body in (first, second))


def test_two_messages_have_two_ids_without_the_dots_that_a_key_may_hold():
    dotted = replace(digest(), operation_key="customer_digest:2026-W42:a.b.c")
    ids = {pushed_at(NOW, envelope=one)[0][0]["webhook-id"] for one in (digest(), dotted)}
    assert len(ids) == 2
    assert not any("." in one for one in ids)


def test_while_a_secret_is_rotated_both_sign():
    ((headers, body),) = pushed_at(NOW, envelope=digest(), secrets=(SECRET, PREVIOUS))
    assert verified(headers, body, SECRET)
    assert verified(headers, body, PREVIOUS)
    assert len(headers["webhook-signature"].split(" ")) == 2


def test_another_secret_or_port_leaves_the_account_what_it_was():
    def account(**settings):
        return registry.create(
            "https_push", {"url": "https://push.example", "secret": SECRET, **settings}
        ).account

    assert account() == account(secret=PREVIOUS) == account(url="https://push.example:8443/")
    assert account() != account(url="https://push.example/other")


def test_a_subscriber_remembers_for_as_long_as_the_setting_says():
    made = registry.create("https_push", {"url": "https://p.example", "secret": SECRET, "key_lifetime": "7d"})
    assert made.capabilities.key_lifetime == timedelta(days=7)


PRIVATE = [
    "10.0.0.5", "172.16.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.0.1", "198.18.0.1", "::1", "::", "fe80::1",
    "fc00::1", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:169.254.169.254", "::ffff:10.0.0.5", "::10.0.0.5",
    "64:ff9b::a9fe:a9fe", "2002:a00:5::1", "2001:0:a00:5::", "not an address", "fe80::1%eth0",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_no_private_address_in_any_of_its_forms_is_connected_to(address):
    """SEC-10."""
    assert not Guard("push.example", []).allows(address)
    assert not Guard("push.example", ["10.1.0.0/16", "other.example"]).allows(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_connected_to(address):
    assert Guard("push.example", []).allows(address)


def test_what_is_allowed_is_the_network_or_the_host_that_was_named_and_no_more():
    """SEC-10: a name opens no metadata service, a network opens itself."""
    network, name = Guard("push.example", ["10.0.0.0/8"]), Guard("push.example", ["Push.Example."])
    assert network.allows("10.0.0.5")
    assert network.allows("::ffff:10.0.0.5")
    assert not network.allows("192.168.1.1")
    assert all(name.allows(one) for one in ("10.0.0.5", "127.0.0.1", "fc00::1"))
    assert not any(name.allows(one) for one in ("169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"))
    assert Guard("push.example", ["169.254.0.0/16"]).allows("169.254.169.254")


@pytest.mark.parametrize(
    "url",
    [
        "https://[::ffff:169.254.169.254]/",
        "https://[::1]:9/",
        "https://169.254.169.254/",
        "https://localhost:9/",
    ],
)
def test_a_url_to_an_inner_address_halts_before_anything_leaves(url):
    """SEC-10."""

    async def run():
        async with registry.create("https_push", {"url": url, "secret": SECRET}) as gateway:
            return await gateway.send(digest())

    outcome = asyncio.run(run())
    assert isinstance(outcome, AccountRefused)
    assert "private" in outcome.detail


def test_a_name_that_resolves_to_another_address_later_is_checked_again(monkeypatch):
    """SEC-10: the second answer of the name server leads inside."""
    answers = ["127.0.0.1", "10.0.0.5"]
    real = socket.getaddrinfo

    def resolve(host, port, *args, **kwargs):
        if host != "rebinding.example":
            return real(host, port, *args, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def run():
        async with raw_server([COMPLETE]) as server:
            url = server.url.replace("127.0.0.1", "rebinding.example")
            outcomes = []
            for _ in range(2):
                async with registry.create("https_push", {**LOCAL, "url": url}) as gateway:
                    outcomes.append(await gateway.send(digest()))
            return outcomes, len(server.requests)

    (first, second), requests = asyncio.run(run())
    assert isinstance(first, Accepted)
    assert isinstance(second, AccountRefused)
    assert requests == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://user:pa55word@push.example",
        "https://pa55word@push.example",
        "https://push.example@169.254.169.254",
        "https://@push.example",
        "https://push.example\\@169.254.169.254",
        "https://push.example\r\nHost: inner",
        "https://push.example/?to=pa55word",
        "https://push.example/#pa55word",
        "https://push.example/?",
        "ftp://push.example",
        "file:///etc/passwd",
        "https://",
        "https:///push",
        "https://push.example:99999",
        "https://127.1",
        "https://2130706433",
        "https://0x7f.0.0.1",
        "https://127.0.0.01",
        "push.example",
        "",
    ],
)
def test_a_url_that_readers_could_take_for_another_is_refused_without_being_quoted(url):
    """SEC-10."""
    with pytest.raises(SpecError) as refused:
        registry.create("https_push", {"url": url, "secret": SECRET})
    assert "url" in str(refused.value)
    assert "pa55word" not in str(refused.value)


def test_plain_http_goes_to_this_machine_alone_and_only_where_that_is_allowed():
    with pytest.raises(SpecError, match="allow_private"):
        registry.create("https_push", {"url": "http://127.0.0.1:8443", "secret": SECRET})
    clear = Guard("push.example", ["push.example", "10.0.0.0/8"], loopback_only=True)
    assert not any(clear.allows(one) for one in ("10.0.0.5", "8.8.8.8"))


@pytest.mark.parametrize(
    "secret", ["", "plain-text-secret", "whsec_", "whsec_c2hvcnQ=", "whsec_!!!!", "whsec_" + "A" * 400]
)
def test_a_secret_that_is_none_is_refused_without_being_shown(secret):
    with pytest.raises(SpecError) as refused:
        registry.create("https_push", {"url": "https://push.example", "secret": secret})
    assert "secret" in str(refused.value)
    assert not secret or secret.removeprefix("whsec_")[:8] not in str(refused.value) or secret == "whsec_"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ca_file": "/nowhere/authorities.pem"}, "authorities.pem"),
        ({"allow_private": "10.0.0.0/99"}, "10.0.0.0/99"),
        ({"previous_secret": "whsec_c2hvcnQ="}, "secret"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(settings, words):
    with pytest.raises(SpecError, match=re.escape(words)):
        registry.create("https_push", {"url": "https://push.example", "secret": SECRET, **settings})


def test_pushes_are_json_with_a_content_type():
    head, _ = pushing.sent_body(digest(), COMPLETE)
    assert "content-type: application/json" in head.lower()
    assert json.loads(json.dumps(dict(registry.KINDS["https_push"].settings)))["ca_file"]
