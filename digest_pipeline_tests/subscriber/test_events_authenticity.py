"""Whose word is taken: each provider's own proof, on the raw bytes, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from digest_pipeline.errors import InputError
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.subscriber.events import brevo, mailgun, mailjet, postmark, resend, sendgrid, ses
from digest_pipeline.subscriber.events.reading import Posted, Reader, RefusedError
from digest_pipeline_tests.subscriber import posts
from digest_pipeline_tests.subscriber.posts import NOW, Post

KEY = "tiny_digest:2025-W10:customer-001"


def amazons_page(url: str) -> bytes:
    assert url == posts.CERTIFICATE_URL, url
    return posts.amazon()[1]


def ignore(_topic: str) -> None:
    """Nobody to tell."""


READERS: dict[str, Reader] = {
    "resend": resend.reader(posts.RESEND_KEYS),
    "postmark": postmark.reader(posts.PAIRS),
    "mailjet": mailjet.reader(posts.PAIRS),
    "brevo": brevo.reader(posts.BREVO_TOKENS),
    "mailgun": mailgun.reader(posts.MAILGUN_KEYS),
    "sendgrid": sendgrid.reader([posts.sendgrid_public(0), posts.sendgrid_public(1)]),
    "ses": ses.reader([posts.TOPIC], amazons_page, ignore),
}
NEW: dict[str, Callable[[], Post]] = {
    "resend": lambda: posts.resend(posts.resend_body("delivered", KEY)),
    "postmark": lambda: posts.basic(posts.postmark_body("Delivery", KEY)),
    "mailjet": lambda: posts.basic(posts.mailjet_body("sent", KEY)),
    "brevo": lambda: posts.bearer(posts.brevo_body("delivered", KEY)),
    "mailgun": lambda: posts.mailgun(posts.mailgun_body("delivered", KEY)),
    "sendgrid": lambda: posts.sendgrid([posts.sendgrid_body("delivered", KEY)]),
    "ses": lambda: posts.sns(posts.ses_body("Delivery", KEY)),
}
PREVIOUS: dict[str, Callable[[], Post]] = {
    "resend": lambda: posts.resend(posts.resend_body("delivered", KEY), key=posts.RESEND_KEYS[1]),
    "postmark": lambda: posts.basic(posts.postmark_body("Delivery", KEY), posts.PAIRS[1]),
    "mailjet": lambda: posts.basic(posts.mailjet_body("sent", KEY), posts.PAIRS[1]),
    "brevo": lambda: posts.bearer(posts.brevo_body("delivered", KEY), posts.BREVO_TOKENS[1]),
    "mailgun": lambda: posts.mailgun(posts.mailgun_body("delivered", KEY), key=posts.MAILGUN_KEYS[1]),
    "sendgrid": lambda: posts.sendgrid([posts.sendgrid_body("delivered", KEY)], number=1),
    "ses": lambda: posts.sns(posts.ses_body("Delivery", KEY), version="1"),
}
OF_ANOTHER: dict[str, Callable[[], Post]] = {
    "resend": lambda: posts.resend(posts.resend_body("delivered", KEY), key="whsec_" + "QUFB" * 8),
    "postmark": lambda: posts.basic(posts.postmark_body("Delivery", KEY), "hook:guess"),
    "mailjet": lambda: posts.basic(posts.mailjet_body("sent", KEY), "hook:"),
    "brevo": lambda: posts.bearer(posts.brevo_body("delivered", KEY), "guess"),
    "mailgun": lambda: posts.mailgun(posts.mailgun_body("delivered", KEY), key="guess"),
    "sendgrid": lambda: posts.sendgrid([posts.sendgrid_body("delivered", KEY)], number=2),
}
DATED: dict[str, Callable[[float], Post]] = {
    "resend": lambda stamp: posts.resend(posts.resend_body("delivered", KEY), stamp=stamp),
    "mailgun": lambda stamp: posts.mailgun(posts.mailgun_body("delivered", KEY), stamp=stamp),
    "sendgrid": lambda stamp: posts.sendgrid([posts.sendgrid_body("delivered", KEY)], stamp=stamp),
    "ses": lambda stamp: posts.sns(posts.ses_body("Delivery", KEY), stamp=stamp),
}
PAST = {"resend": 300, "mailgun": 300, "sendgrid": 25 * 3600, "ses": 3600}


def read(provider: str, post: Post, *, peer: str = "192.0.2.9", reader: Reader | None = None) -> list[Event]:
    return (reader or READERS[provider])(Posted(post.headers, post.body, peer, NOW))


def refusal(provider: str, post: Post, **more: Any) -> int:
    with pytest.raises(RefusedError) as refused:
        read(provider, post, **more)
    return refused.value.status


@pytest.mark.parametrize("provider", READERS)
@pytest.mark.parametrize("made", [NEW, PREVIOUS], ids=["current", "previous"])
def test_an_authentic_request_is_read_also_with_the_previous_secret(
    provider: str, made: dict[str, Callable[[], Post]]
) -> None:
    """Secret rotation: both are good for as long as both are configured (Amazon: both signature versions)."""
    (event,) = read(provider, made[provider]())
    assert (event.provider, event.key, str(event.kind)) == (provider, KEY, "delivered")


@pytest.mark.parametrize("provider", OF_ANOTHER)
def test_a_request_with_another_secret_is_refused(provider: str) -> None:
    assert refusal(provider, OF_ANOTHER[provider]()) == 401


@pytest.mark.parametrize("provider", READERS)
def test_a_request_without_any_proof_is_refused(provider: str) -> None:
    body = {"ses": b'{"Type":"Notification","TopicArn":"' + posts.TOPIC.encode() + b'"}'}.get(provider, b"{}")
    assert refusal(provider, Post(body)) in (401, 403)


@pytest.mark.parametrize("provider", ["resend", "sendgrid"])
def test_an_edited_body_is_refused(provider: str) -> None:
    """SEC-07"""
    post = NEW[provider]()
    assert refusal(provider, replace(post, body=post.body + b" ")) == 401


def test_an_edited_notification_is_refused() -> None:
    """SEC-07"""
    fields = json.loads(NEW["ses"]().body)
    for name in ("Message", "MessageId", "Timestamp"):
        assert refusal("ses", Post(posts.encoded({**fields, name: fields[name] + " "}))) == 401


@pytest.mark.parametrize(
    ("provider", "header"),
    [
        ("resend", "svix-timestamp"),
        ("resend", "svix-id"),
        ("sendgrid", "x-twilio-email-event-webhook-timestamp"),
    ],
)
def test_an_edited_timestamp_or_identity_is_refused(provider: str, header: str) -> None:
    """SEC-07: the same body again, with a newer time."""
    post = NEW[provider]()
    changed = {**post.headers, header: post.headers[header][:-1] + "7"}
    assert refusal(provider, replace(post, headers=changed)) == 401


def test_mailguns_timestamp_and_token_are_signed() -> None:
    """SEC-07"""
    found = json.loads(NEW["mailgun"]().body)
    for name in ("timestamp", "token"):
        changed = {**found["signature"], name: found["signature"][name][:-1] + "7"}
        assert refusal("mailgun", Post(posts.encoded({**found, "signature": changed}))) == 401


@pytest.mark.parametrize("provider", DATED)
def test_the_past_and_the_future_are_limited_apart(provider: str) -> None:
    """SEC-07: one tolerance for both would double the window of a replay."""
    assert read(provider, DATED[provider](NOW - PAST[provider] + 1))
    assert refusal(provider, DATED[provider](NOW - PAST[provider] - 1)) == 400
    assert read(provider, DATED[provider](NOW + 59))
    assert refusal(provider, DATED[provider](NOW + 61)) == 400
    assert refusal(provider, DATED[provider](NOW + 600)) == 400


@pytest.mark.parametrize("provider", READERS)
def test_an_event_keeps_its_identity_when_it_comes_again(provider: str) -> None:
    """SEC-07: so that a replay is a no-op; and two events of one message have two."""
    (first,), (second,) = read(provider, NEW[provider]()), read(provider, NEW[provider]())
    assert first.event_id == second.event_id
    assert len(first.event_id) <= 200


def test_somebody_elses_topic_is_refused_before_anything_is_fetched() -> None:
    """SEC-09: a genuine signature of Amazon's, but of another account."""
    fetched: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        return posts.amazon()[1]

    foreign = "arn:aws:sns:eu-west-1:999900001111:digest-events"
    reader = ses.reader([posts.TOPIC], fetch, ignore)
    post = posts.sns(posts.ses_body("Bounce", KEY), TopicArn=foreign)
    assert refusal("ses", post, reader=reader) == 403
    assert fetched == []


def test_a_notification_of_our_topic_about_another_account_is_refused() -> None:
    """SEC-09"""
    body = posts.ses_body("Bounce", KEY)
    body["mail"]["sendingAccountId"] = "999900001111"
    assert refusal("ses", posts.sns(body)) == 403


@pytest.mark.parametrize(
    "url",
    [
        "http://sns.eu-west-1.amazonaws.com/x.pem",
        "https://sns.eu-west-1.amazonaws.com.evil.test/x.pem",
        "https://sns.eu-west-1.amazonaws.com@evil.test/x.pem",
        "https://evil.test/sns.eu-west-1.amazonaws.com/x.pem",
        "https://sns.eu-west-1.amazonaws.com:8443/x.pem",
        "https://sns.eu-west-1.amazonaws.com/x",
        "https://sns.eu-west-1.amazonaws.com/x.pem",
        "https://sns.eu-west-1.amazonaws.com/?Action=GetEndpointAttributes&EndpointArn=a&x=.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123.pem?x=.pem",
        "https://sns.s3-eu-west-1.amazonaws.com/SimpleNotificationService-0123.pem",
        "https://[sns.eu-west-1.amazonaws.com/x.pem",
        "file:///etc/passwd",
        7,
    ],
)
def test_a_certificate_is_only_ever_fetched_from_amazon(url: Any) -> None:
    """SEC-09"""
    fields = json.loads(NEW["ses"]().body)
    assert refusal("ses", Post(posts.encoded({**fields, "SigningCertURL": url}))) == 403


def test_a_certificate_that_cannot_be_fetched_is_asked_for_again() -> None:
    def fetch(_url: str) -> bytes:
        raise OSError("no route")

    assert refusal("ses", NEW["ses"](), reader=ses.reader([posts.TOPIC], fetch, ignore)) == 503


def test_a_topic_of_ours_confirms_its_subscription_and_no_other_does() -> None:
    fetched: list[str] = []
    confirmed: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        return posts.amazon()[1]

    reader = ses.reader([posts.TOPIC], fetch, confirmed.append)
    address = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=abc"
    asked: dict[str, Any] = {"Type": "SubscriptionConfirmation", "Token": "abc", "SubscribeURL": address}
    assert read("ses", posts.sns("You have chosen to subscribe", **asked), reader=reader) == []
    assert (fetched[-1], confirmed) == (address, [posts.TOPIC])
    elsewhere = {**asked, "SubscribeURL": "https://evil.test/"}
    assert refusal("ses", posts.sns("You have chosen to subscribe", **elsewhere), reader=reader) == 403
    assert confirmed == [posts.TOPIC]


def test_postmark_may_call_from_its_own_addresses_only_where_they_are_named() -> None:
    reader = postmark.reader(posts.PAIRS, ["3.134.147.250", "50.31.156.0/24"])
    assert read("postmark", NEW["postmark"](), reader=reader, peer="50.31.156.77")
    assert read("postmark", NEW["postmark"](), reader=reader, peer="::ffff:3.134.147.250")
    for peer in ("3.134.147.251", "", "localhost"):
        assert refusal("postmark", NEW["postmark"](), reader=reader, peer=peer) == 403


def test_an_event_of_another_postmark_server_is_refused() -> None:
    """SEC-09"""
    assert read("postmark", NEW["postmark"](), reader=postmark.reader(posts.PAIRS, (), ["23"]))
    assert refusal("postmark", NEW["postmark"](), reader=postmark.reader(posts.PAIRS, (), ["24"])) == 403


@pytest.mark.parametrize(
    ("make", "variable"),
    [
        (lambda: resend.reader(["whsec_not-base64!"]), "DIGEST_EVENTS_RESEND_SECRET"),
        (lambda: sendgrid.reader(["QUJD"]), "DIGEST_EVENTS_SENDGRID_KEY"),
        (lambda: postmark.reader(posts.PAIRS, ["nowhere"]), "DIGEST_EVENTS_POSTMARK_NETWORKS"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_and_not_shown(
    make: Callable[[], Reader], variable: str
) -> None:
    with pytest.raises(InputError, match=variable) as error:
        make()
    assert "not-base64" not in str(error.value)
    assert "QUJD" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("provider", READERS)
@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"7", b'"x"', b"\xff", b"[" * 5_000, b'{"a":1e999}'])
def test_no_body_makes_a_reader_fail_in_a_way_of_its_own(provider: str, body: bytes) -> None:
    signed = {
        "resend": lambda: posts.resend(body),
        "sendgrid": lambda: posts.sendgrid(body),
        "postmark": lambda: posts.basic(body),
        "mailjet": lambda: posts.basic(body),
        "brevo": lambda: posts.bearer(body),
    }.get(provider, lambda: Post(body))
    assert _answer(provider, signed()) in ([], 400, 401, 403)


def _answer(provider: str, post: Post) -> object:
    try:
        return read(provider, post)
    except RefusedError as refused:
        return refused.status
