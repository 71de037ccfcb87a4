"""Amazon SES: events through an SNS topic of ours.

Documented (https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html and
.../notification-contents.html): ``eventType`` or ``notificationType``; ``mail.messageId``, ``mail.tags``
(each a list), ``mail.headers`` where they are included, ``mail.sendingAccountId``; ``bounce.bounceType``
(Permanent, Transient, Undetermined). SNS's ``MessageId`` stays the same however often it is sent again, for
at most an hour by its retry policy for HTTP; its ``Timestamp`` is the publication's.
A topic of ours confirms itself: its first message, signed and allowed, is answered by fetching its URL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from digest_pipeline.errors import InputError
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.subscriber.events import sns
from digest_pipeline.subscriber.events.reading import (
    KEY_NAME,
    MICROS,
    UNAUTHENTIC,
    Posted,
    Reader,
    RefusedError,
    iso,
    json_of,
    key_in,
    named_value,
    object_in,
    require_fresh,
    text_in,
)

PAST, FUTURE = 3600.0, 60.0
KINDS = {
    "Send": EventKind.ACCEPTED,
    "Delivery": EventKind.DELIVERED,
    "DeliveryDelay": EventKind.DEFERRED,
    "Bounce": EventKind.BOUNCED,
    "Complaint": EventKind.COMPLAINED,
    "Reject": EventKind.REJECTED,
    "Rendering Failure": EventKind.REJECTED,
}


def reader(topics: Sequence[str], fetch: sns.Fetch, on_confirmed: Callable[[str], None]) -> Reader:
    """Return what reads SNS's requests. ``on_confirmed`` is told the topic whose subscription was confirmed."""
    for topic in topics:
        if topic.count(":") != 5 or not topic.startswith("arn:"):
            raise InputError("DIGEST_EVENTS_SES_TOPICS: each is an ARN, arn:aws:sns:region:account:name")

    def read(posted: Posted) -> list[Event]:
        message = json_of(posted.body)
        if not isinstance(message, dict):
            raise RefusedError(400, "not a notification")
        sns.require_ours(message, topics)
        sns.require_signed(message, fetch)
        published, identity = iso(message.get("Timestamp")), text_in(message, "MessageId")
        if published is None or identity is None:
            raise RefusedError(401, UNAUTHENTIC)
        require_fresh(published / MICROS, posted.now, past=PAST, future=FUTURE)
        if message["Type"] == "SubscriptionConfirmation":
            _confirm(message, fetch)
            on_confirmed(message["TopicArn"])
        if message["Type"] != "Notification" or not str(message.get("Message")).startswith("{"):
            return []  # SES greets a new topic with a sentence
        event = _event(json_of(message["Message"]), identity, message["TopicArn"])
        return [] if event is None else [event]

    return read


def _confirm(message: dict[str, Any], fetch: sns.Fetch) -> None:
    if not sns.is_amazons(message.get("SubscribeURL")):
        raise RefusedError(403, "a subscription elsewhere")
    try:
        fetch(message["SubscribeURL"])
    except OSError:
        raise RefusedError(503, "the subscription cannot be confirmed") from None


def _event(found: Any, identity: str, topic: str) -> Event | None:
    word = text_in(found, "eventType") or text_in(found, "notificationType") or ""
    kind = KINDS.get(word)
    if kind is None:
        return None
    mail = object_in(found, "mail")
    account = text_in(mail, "sendingAccountId")
    if account is not None and account != topic.split(":")[4]:
        raise RefusedError(403, "of another account")
    bounce = object_in(found, "bounce")
    happened = next(
        (
            t
            for name in ("bounce", "complaint", "delivery", "deliveryDelay")
            if (t := iso(object_in(found, name).get("timestamp")))
        ),
        None,
    )
    tags = object_in(mail, "tags").get(KEY_NAME)
    return Event(
        "ses",
        identity,
        kind,
        key_in(
            named_value(mail.get("headers"), "X-Operation-Key"),
            tags[0] if isinstance(tags, list) and tags and isinstance(tags[0], str) else None,
        ),
        text_in(mail, "messageId"),
        happened or iso(mail.get("timestamp")),
        permanent=text_in(bounce, "bounceType") == "Permanent",
        account=account,
    )
