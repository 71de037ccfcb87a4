"""SES, SendGrid, Mailgun and Brevo together: one recipient, secrets unseen, and one try for each claim."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.addresses import clean_line, clean_name
from digest_pipeline.content.message import Message
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import brevo, mailgun, registry, sendgrid, ses
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.envelopes import unsendable
from digest_pipeline.gateways.json_api import serialise
from digest_pipeline.gateways.ses_signing import Signer
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.outcomes import Accepted, AccountRefused, Ambiguous
from digest_pipeline_tests.gateways.answering import Answering, said
from digest_pipeline_tests.gateways.stands import digest
from digest_pipeline_tests.gateways.test_contract import send

KINDS = ["brevo", "mailgun", "sendgrid", "ses"]
REST = {"ses": {"region": "eu-central-1"}, "mailgun": {"domain": "mg.sender.test"}}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ADDRESS_LIKE = st.lists(
    st.sampled_from(
        ["a@b.test", ", ", ";", "<c@d.test>", '"x y"@e.test', "\r\nBcc: v@w.test", " ", '"', "\\", "é"]
    )
).map("".join)
HEADERS = st.lists(st.tuples(st.sampled_from(["X-A", "List-Id", "Date", "Reply-To"]), st.just("a@b.test")))
NAMES = ["Doe, Jo", "Acme: Sales; EU", 'A "B" C', "Zoë 🎉; b", "O'Neil\\", "x" * 100, ""]


def shown(content: bytes) -> list[tuple[str, str]]:
    """Return names and addresses of a MIME message's recipients, as the standard library reads them."""
    mail = message_from_bytes(content, _class=EmailMessage, policy=SMTP)
    headers = [header for field in ("To", "Cc", "Bcc") for header in mail.get_all(field, [])]
    return [(one.display_name, one.addr_spec) for header in headers for one in header.addresses]


def ses_recipients(sent: Envelope) -> list[tuple[str, str]]:
    content = ses.raw_content(sent)
    assert isinstance(content, bytes)
    body = ses.request_body(sent, content, "")
    assert body["Destination"] == {"ToAddresses": [sent.recipient]}
    return shown(base64.b64decode(body["Content"]["Raw"]["Data"]))


def mailgun_recipients(sent: Envelope) -> list[tuple[str, str]]:
    content = mailgun.raw_content(sent)
    assert isinstance(content, bytes)
    _, form = mailgun.request_form(sent, content)
    head = f'name="to"\r\n\r\n{sent.recipient}\r\n'.encode()
    assert form.count(b'form-data; name="to"') == form.count(head) == 1
    return shown(content)


def sendgrid_recipients(sent: Envelope) -> list[tuple[str, str]]:
    (one,) = sendgrid.message_body(sent)["personalizations"]
    return [(to.get("name", ""), to["email"]) for field in ("to", "cc", "bcc") for to in one.get(field, [])]


def brevo_recipients(sent: Envelope) -> list[tuple[str, str]]:
    body = brevo.message_body(sent)
    return [(to.get("name", ""), to["email"]) for field in ("to", "cc", "bcc") for to in body.get(field, [])]


RECIPIENTS: dict[str, Callable[[Envelope], list[tuple[str, str]]]] = {
    "brevo": brevo_recipients,
    "mailgun": mailgun_recipients,
    "sendgrid": sendgrid_recipients,
    "ses": ses_recipients,
}


@pytest.mark.parametrize("kind", KINDS)
@given(ADDRESS_LIKE, st.one_of(TEXT, ADDRESS_LIKE), TEXT, HEADERS)
def test_what_can_be_sent_has_exactly_one_address_and_it_is_the_envelopes(
    kind, recipient, name, text, headers
):
    """SEC-04, SEC-12: also to a reader of mailboxes who is not the one that wrote them."""
    message = Message(
        "News <n@b.test>", clean_name(name), clean_line(text), text, text, tuple(headers), "=_b"
    )
    for address in (recipient, "reader@b.test"):
        sent = Envelope("d:p:c", address, message)
        if unsendable(sent, smtputf8=False) is None:
            assert [found for _, found in RECIPIENTS[kind](sent)] == [address]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_with_commas_quotes_or_emoji_is_the_name_of_one_recipient(kind, name):
    """INP-03."""
    sent = digest()
    named = replace(sent, message=replace(sent.message, to_name=name))
    assert RECIPIENTS[kind](named) == [(name, sent.recipient)]


@given(TEXT, TEXT)
def test_the_same_envelope_has_the_same_bytes(name, text):
    """SEC-06."""

    def build():
        sent = Envelope("d:p:c", "a@b.test", Message("s@b.test", name, text, text, text, (), "=_b"))
        form = mailgun.request_form(sent, text.encode())
        bodies = [brevo.message_body(sent), sendgrid.message_body(sent), ses.request_body(sent, b"x", "set")]
        return [*map(serialise, bodies), *form]

    assert build() == build()


@pytest.mark.parametrize("stand", KINDS, indirect=True)
def test_503_does_not_say_that_nothing_was_taken_and_is_tried_once(stand):
    """DUP-33 (c): none of these providers documents that it does."""
    stand.process.control.script(Rule(Fault.UNAVAILABLE_503, next=1))
    (outcome,) = send(stand, digest())
    key = digest().operation_key
    assert isinstance(outcome, Ambiguous)
    assert (stand.arrivals(key), stand.accepted(key)) == (1, 0)


@pytest.mark.parametrize("stand", KINDS, indirect=True)
def test_an_unverified_sender_halts_the_account(stand):
    """DUP-06."""
    sent = digest()
    first, second = (
        digest("first"),
        replace(sent, message=replace(sent.message, sender="x@unverified.example")),
    )
    outcomes = send(stand, first, second)
    assert isinstance(outcomes[0], Accepted)
    assert isinstance(outcomes[1], AccountRefused)
    assert stand.accepted(first.operation_key) == 1
    assert stand.accepted(second.operation_key) == 0


def post(stand, path: str, body: bytes, headers: dict[str, str]) -> int:
    request = Request(stand.process.url + path, body, headers, method="POST")
    with build_opener(ProxyHandler({})).open(request, timeout=30) as reply:
        return int(reply.status)


TWO = "a@example.test", "b@example.test"


def plant_brevo(stand) -> int:
    body = brevo.message_body(digest()) | {"bcc": [{"email": TWO[1]}]}
    return post(stand, "/v3/smtp/email", serialise(body), {"api-key": stand.secrets[0]})


def plant_sendgrid(stand) -> int:
    body = sendgrid.message_body(digest())
    body["personalizations"][0]["cc"] = [{"email": TWO[1]}]
    authorised = {"Authorization": f"Bearer {stand.secrets[0]}"}
    return post(stand, "/v3/mail/send", serialise(body), authorised)


def plant_mailgun(stand) -> int:
    sent = digest()
    content = mailgun.raw_content(sent)
    assert isinstance(content, bytes)
    kind, form = mailgun.request_form(replace(sent, recipient=", ".join(TWO)), content)
    pair = base64.b64encode(f"api:{stand.secrets[0]}".encode()).decode()
    headers = {"Authorization": f"Basic {pair}", "Content-Type": kind}
    return post(stand, "/v3/mg.sender.test/messages.mime", form, headers)


def plant_ses(stand) -> int:
    sent = digest()
    content = ses.raw_content(sent)
    assert isinstance(content, bytes)
    body = json.dumps(ses.request_body(sent, b"Cc: " + TWO[1].encode() + b"\r\n" + content, "")).encode()
    key_id, secret = stand.secrets
    signer = Signer(key_id, secret, "", "eu-central-1")
    return post(stand, ses.PATH, body, signer.sign("POST", stand.process.url + ses.PATH, body))


PLANTED = {"brevo": plant_brevo, "mailgun": plant_mailgun, "sendgrid": plant_sendgrid, "ses": plant_ses}


@pytest.mark.parametrize("stand", KINDS, indirect=True)
def test_a_second_recipient_would_be_seen(stand):
    """SEC-04, planted: the count is the provider's own reading, not ours."""
    assert PLANTED[stand.kind](stand) in (200, 201, 202)
    assert stand.with_other_than_one_recipient() == 1


def credential(kind: str, secret: str) -> dict[str, str]:
    return dict.fromkeys(registry.KINDS[kind].secrets, secret)


@pytest.mark.parametrize("kind", KINDS)
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
    with pytest.raises(SpecError, match=reason) as caught:
        registry.create(kind, {**credential(kind, "s3cr3t"), **REST.get(kind, {}), "url": url})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("secret", ["s3cr3t\n", "s3cr3t\r\nX-A: b", " s3cr3t", "s3cr3té"])
def test_a_credential_that_no_header_can_carry_is_refused_without_being_shown(kind, secret):
    """SEC-01."""
    with pytest.raises(SpecError, match="credential") as caught:
        registry.create(kind, {**credential(kind, secret), **REST.get(kind, {})})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_url_the_real_provider_is_meant_and_each_credential_is_an_account_of_its_own(kind):
    one, other = (registry.create(kind, credential(kind, secret) | REST.get(kind, {})) for secret in "ab")
    assert one.account != other.account
    assert "https://" in registry.KINDS[kind].settings["url"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_setting_is_named(kind):
    for missing in {*credential(kind, "x"), *REST.get(kind, {})} - {"session_token"}:
        given_settings = credential(kind, "x") | REST.get(kind, {})
        del given_settings[missing]
        with pytest.raises(SpecError, match=f"needs the setting '{missing}'"):
            registry.create(kind, given_settings)


ECHOES = {
    "brevo": lambda text: said(401, {"code": "unauthorized", "message": text}),
    "mailgun": lambda text: said(403, {"message": text}),
    "sendgrid": lambda text: said(401, {"errors": [{"message": text, "field": None}]}),
    "ses": lambda text: said(403, {"message": text}, "x-amzn-errortype: AccessDeniedException\r\n"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_or_a_name_that_is_echoed_in_plain_words_is_not_shown(kind):
    """SEC-01: what looks like no token and no address is hidden because it is known."""
    names = sorted(registry.KINDS[kind].secrets)
    secrets = {name: f"plain{place}word" for place, name in enumerate(names)}
    echoed = [*secrets.values(), "Reader 1842"]
    encoded = [base64.b64encode(text.encode()).decode() for text in echoed]
    outcome = Answering(kind, secrets | REST.get(kind, {})).send(ECHOES[kind](" and ".join(echoed + encoded)))
    assert isinstance(outcome, AccountRefused)
    assert "<hidden>" in outcome.detail
    assert not [text for text in echoed + encoded if text.rstrip("=") in outcome.detail]
