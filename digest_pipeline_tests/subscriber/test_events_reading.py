"""What each provider's words mean to us: kind, and whether another message would fare the same."""

from __future__ import annotations

from typing import Any

import pytest

from digest_pipeline.gateways import references
from digest_pipeline_tests.subscriber import posts
from digest_pipeline_tests.subscriber.posts import Post
from digest_pipeline_tests.subscriber.test_events_authenticity import KEY, NEW, read


def resend(kind: str, **data: Any) -> Post:
    return posts.resend(posts.resend_body(kind, KEY, **data))


def postmark(record: str, **more: Any) -> Post:
    return posts.basic(posts.postmark_body(record, KEY, **more))


def bounced(kind: str) -> Post:
    return postmark("Bounce", ID=692560173, Type=kind, BouncedAt="2026-11-08T21:33:34Z", Inactive=False)


def mailjet(event: str, **more: Any) -> Post:
    return posts.basic([posts.mailjet_body(event, KEY, **more)])


def brevo(event: str) -> Post:
    return posts.bearer(posts.brevo_body(event, KEY))


def mailgun(event: str, **more: Any) -> Post:
    return posts.mailgun(posts.mailgun_body(event, KEY, **more))


def sendgrid(event: str, **more: Any) -> Post:
    return posts.sendgrid([posts.sendgrid_body(event, KEY, **more)])


def ses(event: str, **more: Any) -> Post:
    return posts.sns(posts.ses_body(event, KEY, **more))


MEANS: list[tuple[str, Post, str, bool]] = [
    ("resend", resend("sent"), "accepted", False),
    ("resend", resend("delivered"), "delivered", False),
    ("resend", resend("delivery_delayed"), "deferred", False),
    ("resend", resend("bounced", bounce={"type": "Permanent", "subType": "Suppressed"}), "bounced", True),
    ("resend", resend("bounced", bounce={"type": "Transient", "subType": "General"}), "bounced", False),
    ("resend", resend("bounced"), "bounced", True),
    ("resend", resend("complained"), "complained", False),
    ("resend", resend("failed", failed={"reason": "reached_daily_quota"}), "rejected", False),
    ("resend", resend("suppressed"), "rejected", True),
    ("postmark", postmark("Delivery", DeliveredAt="2026-11-08T16:33:54.9070259Z"), "delivered", False),
    ("postmark", bounced("HardBounce"), "bounced", True),
    ("postmark", bounced("SoftBounce"), "bounced", False),
    ("postmark", bounced("Transient"), "deferred", False),
    ("postmark", bounced("BadEmailAddress"), "rejected", True),
    ("postmark", bounced("TemplateRenderingFailed"), "rejected", False),
    ("postmark", bounced("SpamComplaint"), "complained", False),
    ("postmark", bounced("Unsubscribe"), "unsubscribed", False),
    ("postmark", postmark("SpamComplaint", ID=42, Type="SpamComplaint"), "complained", False),
    (
        "postmark",
        postmark("SubscriptionChange", SuppressSending=True, SuppressionReason="ManualSuppression"),
        "unsubscribed",
        False,
    ),
    ("mailjet", mailjet("sent", smtp_reply="sent (250 2.0.0 OK)"), "delivered", False),
    ("mailjet", mailjet("bounce", blocked=False, hard_bounce=True, error="user unknown"), "bounced", True),
    (
        "mailjet",
        mailjet("bounce", blocked=False, hard_bounce=False, error="quota exceeded"),
        "bounced",
        False,
    ),
    ("mailjet", mailjet("bounce", hard_bounce=False, error="greylisted"), "deferred", False),
    ("mailjet", mailjet("blocked", error_related_to="recipient", error="user unknown"), "rejected", True),
    ("mailjet", mailjet("blocked", error_related_to="content", error="content blocked"), "rejected", False),
    ("mailjet", mailjet("spam", source="JMRPP"), "complained", False),
    ("mailjet", mailjet("unsub", mj_list_id=1), "unsubscribed", False),
    ("brevo", brevo("request"), "accepted", False),
    ("brevo", brevo("delivered"), "delivered", False),
    ("brevo", brevo("deferred"), "deferred", False),
    ("brevo", brevo("soft_bounce"), "bounced", False),
    ("brevo", brevo("hard_bounce"), "bounced", True),
    ("brevo", brevo("spam"), "complained", False),
    ("brevo", brevo("blocked"), "rejected", True),
    ("brevo", brevo("error"), "rejected", False),
    ("brevo", brevo("unsubscribed"), "unsubscribed", False),
    ("mailgun", mailgun("accepted"), "accepted", False),
    ("mailgun", mailgun("delivered"), "delivered", False),
    ("mailgun", mailgun("failed", severity="temporary", reason="generic"), "deferred", False),
    ("mailgun", mailgun("failed", severity="permanent", reason="bounce"), "bounced", True),
    ("mailgun", mailgun("failed", severity="permanent", reason="old"), "bounced", False),
    ("mailgun", mailgun("failed", severity="permanent", reason="suppress-bounce"), "rejected", True),
    ("mailgun", mailgun("rejected", reject={"reason": "Sandbox"}), "rejected", False),
    ("mailgun", mailgun("complained"), "complained", False),
    ("mailgun", mailgun("unsubscribed"), "unsubscribed", False),
    ("sendgrid", sendgrid("processed"), "accepted", False),
    ("sendgrid", sendgrid("deferred", attempt="5"), "deferred", False),
    ("sendgrid", sendgrid("delivered", response="250 OK"), "delivered", False),
    ("sendgrid", sendgrid("bounce", type="bounce", status="5.1.1"), "bounced", True),
    ("sendgrid", sendgrid("bounce", type="blocked", status="4.0.0"), "bounced", False),
    ("sendgrid", sendgrid("dropped", reason="Bounced Address", status="5.0.0"), "rejected", True),
    ("sendgrid", sendgrid("dropped", reason="Spam Content"), "rejected", False),
    ("sendgrid", sendgrid("spamreport"), "complained", False),
    ("sendgrid", sendgrid("group_unsubscribe", asm_group_id=10), "unsubscribed", False),
    ("ses", ses("Send", send={}), "accepted", False),
    ("ses", ses("Delivery", delivery={"timestamp": "2026-11-05T20:39:26.000Z"}), "delivered", False),
    ("ses", ses("DeliveryDelay", deliveryDelay={"delayType": "MailboxFull"}), "deferred", False),
    ("ses", ses("Bounce", bounce={"bounceType": "Permanent", "bounceSubType": "General"}), "bounced", True),
    ("ses", ses("Bounce", bounce={"bounceType": "Transient"}), "bounced", False),
    ("ses", ses("Complaint", complaint={"complaintFeedbackType": "abuse"}), "complained", False),
    ("ses", ses("Reject", reject={"reason": "Bad content"}), "rejected", False),
    (
        "ses",
        ses("Rendering Failure", failure={"errorMessage": "Attribute 'x' is not present"}),
        "rejected",
        False,
    ),
]


@pytest.mark.parametrize(("provider", "post", "kind", "permanent"), MEANS)
def test_a_documented_event_means(provider: str, post: Post, kind: str, permanent: bool) -> None:
    """LOST-12 among them: what was never rendered was rejected."""
    (event,) = read(provider, post)
    assert (event.provider, event.kind, event.permanent, event.key) == (provider, kind, permanent, KEY)
    assert event.happened_at is None or event.happened_at > 1_400_000_000_000_000


@pytest.mark.parametrize(
    ("provider", "message_id"),
    [
        ("resend", "m-1"),
        ("postmark", "m-1"),
        ("mailjet", "19421777835146490"),
        ("brevo", "<m-1@smtp-relay.mailin.fr>"),
        ("mailgun", "<m-1@mg.acme.test>"),
        ("sendgrid", "m-1"),
        ("ses", "m-1"),
    ],
)
def test_the_message_id_is_the_one_that_the_api_returned(provider: str, message_id: str) -> None:
    (event,) = read(provider, NEW[provider]())
    assert event.message_id == message_id


@pytest.mark.parametrize(
    ("provider", "post"),
    [
        ("resend", resend("opened")),
        ("resend", posts.resend({"type": "contact.created", "data": {}})),
        ("postmark", postmark("Open", FirstOpen=True)),
        ("postmark", postmark("SubscriptionChange", SuppressSending=True, SuppressionReason="HardBounce")),
        ("postmark", postmark("SubscriptionChange", SuppressSending=False)),
        ("postmark", bounced("AutoResponder")),
        ("mailjet", mailjet("open")),
        ("brevo", brevo("unique_opened")),
        ("brevo", brevo("something_new")),
        ("mailgun", mailgun("clicked")),
        ("sendgrid", sendgrid("click")),
        ("ses", ses("Open")),
        ("ses", posts.sns("Successfully validated SNS topic for Amazon SES event publishing.")),
    ],
)
def test_events_that_say_nothing_of_the_delivery_are_ignored(provider: str, post: Post) -> None:
    assert read(provider, post) == []


def test_each_event_of_a_list_is_read_and_keeps_its_own_identity() -> None:
    listed = [posts.mailjet_body(event, KEY) for event in ("sent", "open", "spam")]
    events = read("mailjet", posts.basic(listed))
    assert [str(event.kind) for event in events] == ["delivered", "complained"]
    assert len({event.event_id for event in events}) == 2


LONG = "tiny_digest:2025-W10:" + "c" * 235


@pytest.mark.parametrize(
    ("provider", "post", "expected"),
    [
        ("resend", posts.resend(posts.resend_body("sent", "", headers=[], tags={"operation_key": references.tag(KEY, 256)})), KEY),
        ("resend", posts.resend(posts.resend_body("sent", "", headers=[], tags=[{"name": "operation_key", "value": references.tag(KEY, 256)}])), KEY),
        ("postmark", posts.basic(posts.postmark_body("Delivery", references.reference(LONG, 80))), references.digest_reference(LONG)),
        ("mailjet", posts.basic(posts.mailjet_body("sent", LONG)), LONG),
        ("ses", posts.sns(posts.ses_body("Send", LONG)), LONG),
    ],
)  # fmt: skip
def test_a_key_is_read_as_the_gateway_wrote_it(provider: str, post: Post, expected: str) -> None:
    """A tag holds it encoded; what was too long is a digest."""
    (event,) = read(provider, post)
    assert event.key == expected
