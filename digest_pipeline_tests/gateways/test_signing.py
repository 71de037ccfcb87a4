"""Standard Webhooks signatures: what is believed, from whom, and for how long."""

import base64
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook

from digest_pipeline.gateways.signing import FUTURE, PAST, SignatureRefusedError, Signer
from digest_pipeline_tests.gateways.stands_push import PREVIOUS, SECRET

BODY = '{"n":"é","v":1.0,"z":[]}'.encode()
ours = Signer("secret", [SECRET])


def now():
    return datetime.now(UTC).replace(microsecond=0)


def test_the_reference_library_verifies_what_is_signed_and_the_other_way_round():
    headers = ours.headers("push_1", BODY, now())
    assert Webhook(SECRET).verify(BODY, headers) == {"n": "é", "v": 1.0, "z": []}
    theirs = {**headers, "webhook-signature": Webhook(SECRET).sign("push_1", now(), BODY.decode())}
    signed = ours.verify({**theirs, "webhook-timestamp": str(int(now().timestamp()))}, BODY, now())
    assert signed.message_id == "push_1"


def test_a_signature_is_good_within_each_limit_and_no_second_longer():
    """SEC-07: past and future are two limits, not one window of both."""
    at = now()
    headers = ours.headers("push_1", BODY, at)
    for good in (at, at + PAST, at - FUTURE):
        assert ours.verify(headers, BODY, good).message_id == "push_1"
    second = timedelta(seconds=1)
    with pytest.raises(SignatureRefusedError, match="too long ago"):
        ours.verify(headers, BODY, at + PAST + second)
    with pytest.raises(SignatureRefusedError, match="in the future"):
        ours.verify(headers, BODY, at - FUTURE - second)


def test_an_edited_timestamp_id_or_body_is_not_ours():
    """SEC-07, SEC-06."""
    at = now()
    headers = ours.headers("push_1", BODY, at)
    later = {**headers, "webhook-timestamp": str(int(at.timestamp()) + 1)}
    renamed = {**headers, "webhook-id": "push_2"}
    for changed, body in (
        (later, BODY),
        (renamed, BODY),
        (headers, BODY + b" "),
        (headers, BODY.replace(b"1.0", b"1")),
    ):
        with pytest.raises(SignatureRefusedError, match="not ours"):
            ours.verify(changed, body, at)


def test_a_rotation_needs_no_instant_at_which_both_change():
    old, new, both = Signer("s", [PREVIOUS]), Signer("s", [SECRET]), Signer("s", [SECRET, PREVIOUS])
    at = now()
    for sender, receiver in ((old, both), (both, old), (both, new), (new, both)):
        assert receiver.verify(sender.headers("push_1", BODY, at), BODY, at).message_id == "push_1"
    with pytest.raises(SignatureRefusedError):
        new.verify(old.headers("push_1", BODY, at), BODY, at)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,not base64!"},
        {"webhook-signature": "v1a,ZWQyNTUxOQ== v2,AAAA"},
        {"webhook-signature": ",,, ,"},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "1e9"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "٣٣٣"},
        {"webhook-timestamp": "9" * 12},
        {"webhook-timestamp": "9" * 400},
        {"webhook-id": ""},
        {"webhook-id": "a.b"},
        {"webhook-id": "x" * 400},
    ],
)
def test_a_malformed_header_is_refused_like_a_wrong_one(changed):
    with pytest.raises(SignatureRefusedError):
        ours.verify(ours.headers("push_1", BODY, now()) | changed, BODY, now())


def test_bytes_that_are_no_text_are_not_ours():
    with pytest.raises(SignatureRefusedError):
        ours.verify(ours.headers("push_1", BODY, now()), b"\xff\xfe", now())


def test_many_signatures_in_one_header_cost_little():
    flood = " ".join(["v1," + base64.b64encode(b"0" * 32).decode()] * 100_000)
    with pytest.raises(SignatureRefusedError):
        ours.verify(ours.headers("push_1", BODY, now()) | {"webhook-signature": flood}, BODY, now())
