"""SEC-04 and SEC-12 for the JSON APIs: one recipient in every message, as an outsider reads it."""

import base64
import json
from email.policy import SMTP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.addresses import clean_line, clean_name
from digest_pipeline.content.message import Message
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import mailjet, postmark, registry, resend
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.envelopes import unsendable
from digest_pipeline.gateways.json_api import matched, serialise
from digest_pipeline.gateways.references import digest_reference, key_of, reference, tag
from digest_pipeline.outcomes import AccountRefused
from digest_pipeline_tests.gateways.answering import Answering, said

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ADDRESS_LIKE = st.lists(
    st.sampled_from(
        ["a@b.test", ", ", ";", "<c@d.test>", '"x y"@e.test', "\r\nBcc: v@w.test", " ", '"', "\\", "é"]
    )
).map("".join)
HEADERS = st.lists(st.tuples(st.sampled_from(["X-A", "List-Id", "Date", "Reply-To"]), st.just("a@b.test")))
KEYS = st.text(st.sampled_from("abzAZ09.:/%~_-#"), min_size=1, max_size=256).map(
    lambda text: f"d:{text}"[:256]
)


def addresses(field):
    """Return the addresses in a header field, as the standard library reads them."""
    return [address.addr_spec for address in SMTP.header_factory("To", field).addresses]


def resend_recipients(sent):
    body = resend.message_body(sent)
    return [one for field in ("to", "cc", "bcc") for text in body.get(field, []) for one in addresses(text)]


def postmark_recipients(sent):
    body = postmark.message_body(sent, "broadcast")
    return [one for field in ("To", "Cc", "Bcc") if field in body for one in addresses(body[field])]


def mailjet_recipients(sent):
    body = mailjet.message_body(sent)
    return [one["Email"] for field in ("To", "Cc", "Bcc") for one in body.get(field, [])]


@pytest.mark.parametrize("recipients_of", [resend_recipients, postmark_recipients, mailjet_recipients])
@given(ADDRESS_LIKE, st.one_of(TEXT, ADDRESS_LIKE), TEXT, HEADERS)
def test_what_can_be_sent_has_exactly_one_address_and_it_is_the_envelopes(
    recipients_of, recipient, name, text, headers
):
    """SEC-04, SEC-12: also to a reader of mailboxes who is not the one that wrote them."""
    message = Message("News <news@b.test>", clean_name(name), clean_line(text), text, text, tuple(headers))
    for address in (recipient, "reader@b.test"):
        sent = Envelope("d:p:c", address, message)
        if unsendable(sent, smtputf8=False) is None:
            assert recipients_of(sent) == [address]


@given(TEXT, TEXT)
def test_the_same_envelope_has_the_same_bytes(name, text):
    def build():
        sent = Envelope("d:p:c", "a@b.test", Message("s@b.test", name, text, text, text))
        bodies = (resend.message_body(sent), postmark.message_body(sent, "s"), mailjet.message_body(sent))
        return [serialise(body) for body in bodies]

    assert build() == build()
    assert all(json.loads(body) for body in build())


@given(KEYS, st.integers(min_value=71, max_value=256))
def test_a_reference_fits_and_gives_back_its_key_or_is_its_digest(key, limit):
    for text in (reference(key, limit), tag(key, limit)):
        assert len(text) <= limit
        assert key_of(text) == key or text == digest_reference(key)


@given(KEYS, KEYS)
def test_two_keys_never_share_a_reference_or_a_tag(one, other):
    if one != other:
        assert reference(one, 80) != reference(other, 80)
        assert tag(one, 80) != tag(other, 80)


@given(KEYS)
def test_a_tag_holds_only_what_every_provider_allows(key):
    assert set(tag(key, 256)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)
ITEMS = st.lists(st.one_of(st.none(), st.sampled_from("abcd")), max_size=5)


@given(NAMES, ITEMS)
def test_no_message_gets_an_item_that_names_another(names, items):
    """DUP-19."""
    found = matched(names, items, lambda item: item)
    assert len(found) == len(names)
    assert all(item is None or item == name for name, item in zip(names, found, strict=True))


@given(st.permutations("abcd"))
def test_items_that_name_their_messages_reach_them_in_any_order(items):
    """DUP-19 (d)."""
    assert matched(list("abcd"), items, lambda item: item) == list("abcd")


def test_the_order_counts_where_items_name_nothing_and_their_number_is_right():
    assert matched(["a", "b"], [1, 2], lambda item: None) == [1, 2]
    assert matched(["a", "b"], [1], lambda item: None) == [None, None]


@pytest.mark.parametrize("kind", ["resend", "postmark", "mailjet"])
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://api.example.test", "must begin with https://"),
        ("ftp://api.example.test", "https://host"),
        ("https://user:word@api.example.test", "without credentials"),
        ("api.example.test", "https://host"),
    ],
)
def test_a_url_that_would_show_the_credential_is_refused(kind, url, reason):
    credential = dict.fromkeys(registry.KINDS[kind].secrets, "s3cr3t")
    with pytest.raises(SpecError, match=reason) as caught:
        registry.create(kind, {**credential, "url": url})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("kind", ["resend", "postmark", "mailjet"])
@pytest.mark.parametrize("credential", ["s3cr3t\n", "s3cr3t\r\nX-A: b", " s3cr3t", "s3cr3té"])
def test_a_credential_that_no_header_can_carry_is_refused_without_being_shown(kind, credential):
    """SEC-01."""
    with pytest.raises(SpecError, match="credential") as caught:
        registry.create(kind, dict.fromkeys(registry.KINDS[kind].secrets, credential))
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("kind", ["resend", "postmark", "mailjet"])
def test_without_a_url_the_real_provider_is_meant_and_each_credential_is_an_account_of_its_own(kind):
    one, other = (
        registry.create(kind, dict.fromkeys(registry.KINDS[kind].secrets, secret)) for secret in ("a", "b")
    )
    assert one.account != other.account
    assert "https://api." in registry.KINDS[kind].settings["url"]


@pytest.mark.parametrize("kind", ["resend", "postmark", "mailjet"])
def test_a_missing_credential_is_named(kind):
    with pytest.raises(SpecError, match="needs the setting"):
        registry.create(kind, {})


ECHOES = {
    "resend": lambda text: said(401, {"name": "validation_error", "message": text}),
    "postmark": lambda text: said(401, {"ErrorCode": 10, "Message": text}),
    "mailjet": lambda text: said(401, {"ErrorCode": "mj-0015", "ErrorMessage": text}),
}


@pytest.mark.parametrize("kind", sorted(ECHOES))
def test_a_credential_or_a_name_that_is_echoed_in_plain_words_is_not_shown(kind):
    """SEC-01: what looks like no token and no address is hidden because it is known."""
    names = sorted(registry.KINDS[kind].secrets)
    secrets = {name: f"plain{place}word" for place, name in enumerate(names)}
    echoed = [*secrets.values(), ":".join(secrets.values()), "Reader 1842"]
    encoded = [base64.b64encode(text.encode()).decode() for text in echoed]
    outcome = Answering(kind, secrets).send(ECHOES[kind](" and ".join(echoed + encoded)))
    assert isinstance(outcome, AccountRefused)
    assert "<hidden>" in outcome.detail
    assert not [text for text in echoed + encoded if text.rstrip("=") in outcome.detail]
