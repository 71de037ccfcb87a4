"""Amazon SES: what each of its documented answers means, and what is put on the wire."""

import asyncio
import base64
import logging
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from multidict import CIMultiDict

from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.references import digest_reference, key_of
from digest_pipeline.gateways.ses import KEY_TAG, PATH
from digest_pipeline.gateways.ses_signing import Signer
from digest_pipeline.lab.providers.emulation import Call
from digest_pipeline.lab.providers.ses_signature import is_signed
from digest_pipeline.outcomes import Accepted, AccountRefused, LookUpFailed, Throttled
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

SETTINGS = {"region": "eu-central-1", "access_key_id": "AKIATEST", "secret_access_key": "s3cr3t/+="}
SES = Answering("ses", SETTINGS)
URL = "https://email.eu-central-1.amazonaws.com" + PATH
UNVERIFIED = "Email address is not verified. The following identities failed the check in region US-EAST-1: x"


def error(status, name, message="m"):
    return said(status, {"message": message}, f"x-amzn-errortype: {name}:http://internal.amazon.com/x/\r\n")


ANSWERS = [
    (said(200, {"MessageId": "0107"}), Accepted("0107")),
    (said(200, {"MessageId": ""}), DOUBT),
    (said(200, {"message": "?"}), DOUBT),
    (said(201, {"MessageId": "0107"}), DOUBT),
    (error(400, "MessageRejected", "Message content contains a virus."), CONTENT),
    (error(400, "MessageRejected", UNVERIFIED), ACCOUNT),
    (error(400, "MessageRejected", "Address blacklisted."), RECIPIENT),
    (error(400, "MessageRejected", "Sending paused for this account."), ACCOUNT),
    (error(400, "BadRequestException", "Illegal address"), RECIPIENT),
    (error(400, "BadRequestException", "Missing final '@domain'"), RECIPIENT),
    (error(400, "BadRequestException", "Domain contains illegal character"), RECIPIENT),
    (error(400, "BadRequestException", "Message length is more than 41943040 bytes long"), CONTENT),
    (error(400, "BadRequestException", "Configuration set <x> does not exist."), ACCOUNT),
    (error(400, "MailFromDomainNotVerifiedException"), ACCOUNT),
    (error(400, "AccountSuspendedException"), ACCOUNT),
    (error(400, "SendingPausedException"), ACCOUNT),
    (error(400, "LimitExceededException"), ACCOUNT),
    (error(400, "ExpiredTokenException"), ACCOUNT),
    (error(400, "InvalidSignatureException"), ACCOUNT),
    (error(403, "SignatureDoesNotMatch"), ACCOUNT),
    (error(403, "AccessDeniedException"), ACCOUNT),
    (error(404, "NotFoundException"), ACCOUNT),
    (error(413, "RequestEntityTooLarge"), CONTENT),
    (error(429, "TooManyRequestsException", "Too many requests"), Throttled("")),
    (error(429, "TooManyRequestsException", "Maximum sending rate exceeded."), Throttled("")),
    (error(400, "ThrottlingException", "Maximum sending rate exceeded."), Throttled("")),
    (error(400, "ThrottlingException", "Daily message quota exceeded."), ACCOUNT),
    (error(429, "TooManyRequestsException", "Daily sending quota exceeded."), ACCOUNT),
    (error(408, "RequestTimeoutException"), DOUBT),
    (error(500, "InternalFailure"), DOUBT),
    (error(503, "ServiceUnavailable"), DOUBT),
    (said(400, {"message": "Illegal address"}), ACCOUNT),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS)
def test_each_answer_means_what_the_table_says(reply, expected):
    assert plain(SES.send(reply)) == expected


@pytest.mark.parametrize("name", ["BadRequestException", "com.amazonaws.ses#BadRequestException"])
def test_an_error_is_also_known_by_its_name_in_the_body(name):
    assert plain(SES.send(said(400, {"__type": name, "Message": "Illegal address"}))) == RECIPIENT


def test_throttling_is_waited_for_as_long_as_it_says():
    """CLS-02, CLS-08."""
    limited = said(400, {"message": "Maximum sending rate exceeded."},
                   "x-amzn-errortype: ThrottlingException\r\nRetry-After: 7\r\n")  # fmt: skip
    assert SES.send(limited).retry_after == 7


def sent(envelope: Envelope, **settings: str):
    answering = Answering("ses", {**SETTINGS, **settings})
    return answering.sent_body(envelope, said(200, {"MessageId": "a"}))


def test_the_content_is_the_wire_form_and_the_envelope_names_the_one_recipient():
    envelope = digest()
    _, body = sent(envelope)
    assert body["Destination"] == {"ToAddresses": [envelope.recipient]}
    content = base64.b64decode(body["Content"]["Raw"]["Data"])
    assert content == to_mime(envelope.message, envelope.recipient)
    assert f"X-Operation-Key: {envelope.operation_key}".encode() in content
    assert "ConfigurationSetName" not in body


def test_the_key_is_a_tag_or_its_digest_where_that_is_too_long():
    (short,) = sent(digest())[1]["EmailTags"]
    (long,) = sent(digest("9" * 200))[1]["EmailTags"]
    assert (short["Name"], key_of(short["Value"])) == (KEY_TAG, digest().operation_key)
    assert long["Value"] == digest_reference(digest("9" * 200).operation_key)


def test_a_configuration_set_and_a_session_token_are_sent_where_given():
    head, body = sent(digest(), configuration_set="digests", session_token="s3ss10n-t0k3n")
    assert body["ConfigurationSetName"] == "digests"
    assert "X-Amz-Security-Token: s3ss10n-t0k3n" in head
    assert "x-amz-security-token" in head.partition("SignedHeaders=")[2].partition(",")[0]


def test_a_session_token_is_not_part_of_the_account():
    made = [
        registry.create("ses", {**SETTINGS, "session_token": token} if token else SETTINGS)
        for token in ("", "one", "two")
    ]
    assert len({gateway.account for gateway in made}) == 1
    assert registry.create("ses", {**SETTINGS, "access_key_id": "AKIAOTHER"}).account != made[0].account
    assert registry.create("ses", {**SETTINGS, "region": "us-east-1"}).account != made[0].account


@pytest.mark.parametrize("stand", ["ses"], indirect=True)
def test_headers_that_change_how_it_is_sent_never_reach_the_wire(stand):
    plain_digest = digest()
    headers = (*plain_digest.message.headers, ("X-SES-CONFIGURATION-SET", "other"))
    envelope = replace(plain_digest, message=replace(plain_digest.message, headers=headers))

    async def send():
        async with stand.gateway() as gateway:
            return await gateway.send(envelope)

    assert plain(asyncio.run(send())) == CONTENT
    assert stand.arrivals(envelope.operation_key) == 0


def test_a_message_without_a_wire_form_is_refused_before_the_wire():
    envelope = digest()
    broken = replace(envelope, message=replace(envelope.message, headers=(("X-A", "é"),)))
    (outcome, server) = SES.ask(lambda gateway: gateway.send(broken), said(200, {"MessageId": "a"}))
    assert plain(outcome) == CONTENT
    assert server.requests == []


@pytest.mark.parametrize("stand", ["ses"], indirect=True)
def test_another_secret_does_not_prove_the_account(stand):
    settings = {**SETTINGS, "access_key_id": stand.secrets[0], "secret_access_key": "another"}

    async def send():
        made = registry.create("ses", {**settings, "url": stand.process.url})
        async with made as gateway:
            return await gateway.send(digest())

    assert isinstance(asyncio.run(send()), AccountRefused)
    assert stand.accepted(digest().operation_key) == 0


def test_there_is_nothing_to_ask():
    assert isinstance(SES.look_up("d:p:c", said(200, {})), LookUpFailed)


def signed_call(body: bytes = b"{}", secret: str = "s3cr3t") -> Call:
    headers = Signer("AKIATEST", secret, "", "eu-central-1").sign("POST", URL, body)
    host = {"Host": "email.eu-central-1.amazonaws.com"}
    return Call("POST", PATH, PATH, {}, CIMultiDict({**headers, **host}), body)


def test_the_signer_and_the_emulation_agree_without_sharing_a_line():
    now = datetime.now(UTC)
    assert is_signed(signed_call(), "AKIATEST", "s3cr3t", "ses", now)
    assert not is_signed(signed_call(), "AKIAOTHER", "s3cr3t", "ses", now)
    assert not is_signed(signed_call(), "AKIATEST", "s3cr3t", "email", now)
    assert not is_signed(signed_call(secret="another"), "AKIATEST", "s3cr3t", "ses", now)


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"{ }"},
        {"path": "/v2/email/other"},
        {"headers": CIMultiDict({**signed_call().headers, "Host": "elsewhere.test"})},
        {"headers": CIMultiDict({**signed_call().headers, "Content-Type": "text/plain"})},
        {"headers": CIMultiDict({"Host": "email.eu-central-1.amazonaws.com"})},
    ],
)
def test_a_signature_covers_path_headers_and_body(change):
    """SEC-06, planted: the emulation sees what the signature doesn't cover."""
    assert not is_signed(signed_call()._replace(**change), "AKIATEST", "s3cr3t", "ses", datetime.now(UTC))


def test_a_signature_is_good_for_minutes_only():
    later = datetime.now(UTC) + timedelta(minutes=6)
    assert not is_signed(signed_call(), "AKIATEST", "s3cr3t", "ses", later)


def test_the_emulation_computes_what_the_published_example_says():
    """get-vanilla of AWS's test suite for Signature Version 4."""
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, "
        "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    )
    headers = CIMultiDict(
        {"Host": "example.amazonaws.com", "X-Amz-Date": "20150830T123600Z", "Authorization": authorization}
    )
    call = Call("GET", "/", "/", {}, headers, b"")
    at = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
    assert is_signed(call, "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "service", at)


def test_what_is_signed_is_not_logged_even_at_debug(caplog):
    """SEC-02: botocore logs the request it signs, session token and all."""
    caplog.set_level(logging.DEBUG)
    Signer("AKIATEST", "s3cr3t-key", "s3ss10n-t0k3n", "eu-central-1").sign("POST", URL, b"{}")
    assert "t0k3n" not in caplog.text
    assert "s3cr3t-key" not in caplog.text


def test_without_botocore_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore.auth", None)
    with pytest.raises(SpecError, match=r"pip install 'digest-pipeline\[ses\]'") as caught:
        registry.create("ses", SETTINGS)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("region", ["eu-central-1.evil.test/", "EU-CENTRAL-1", "frankfurt", "eu-central-1\n"])
def test_a_region_that_is_none_is_refused(region):
    with pytest.raises(SpecError, match="region is one like eu-central-1"):
        registry.create("ses", {**SETTINGS, "region": region})
