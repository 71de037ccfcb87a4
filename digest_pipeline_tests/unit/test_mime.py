import email
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import SMTP
from typing import cast

import pytest

from digest_pipeline.content.message import Message
from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import InputError

KEY = "customer_digest:2026-W42:" + "c" * 230
URL = "<https://example.com/unsubscribe/" + "x" * 400 + ">"


def message(**fields: object) -> Message:
    values: dict[str, object] = {
        "sender": '"News, Inc" <news@example.com>',
        "to_name": "Ann",
        "subject": "Your week",
        "text": "Hello\n",
        "html": "<p>Hello</p>\n",
        "headers": (
            ("Date", "Mon, 24 Mar 1997 06:00:00 +0000"),
            ("X-Operation-Key", KEY),
            ("List-Unsubscribe", URL),
        ),
        "boundary": "=_0123456789abcdef",
    }
    return Message(**(values | fields))  # type: ignore[arg-type]


def parsed(data: bytes) -> EmailMessage:
    return email.message_from_bytes(data, policy=SMTP)


def bodies(data: bytes) -> list[tuple[str, str]]:
    parts = cast(list[EmailMessage], list(parsed(data).iter_parts()))
    return [(part.get_content_type(), part.get_content().replace("\r\n", "\n")) for part in parts]


@pytest.mark.parametrize(
    "name",
    [
        "Doe, Jo",
        "Acme: Sales; EU",
        'A "B" C',
        "back\\slash",
        "",
        "Ann",
        "Doe, Jo " + "x" * 90,
        "Sales; EU, " * 9,
        "(comment) Ann",
        "Ann <x>",
    ],
)
def test_any_name_makes_exactly_one_recipient(name):
    """INP-03."""
    (found,) = parsed(to_mime(message(to_name=name.strip()), "ann@example.com"))["To"].addresses
    assert (found.display_name, found.addr_spec) == (name.strip(), "ann@example.com")


@pytest.mark.parametrize(
    "name", ["Doe, Jö", "山田 太郎", "😀" * 50, "=?utf-8?q?x?=", "Doe, Jö <x> " + "y" * 80]
)
def test_a_name_beyond_ascii_is_encoded_in_short_words_and_makes_one_recipient(name):
    data = to_mime(message(to_name=name), "ann@example.com")
    phrase, at, rest = str(email.message_from_bytes(data)["To"]).rpartition(" <")
    assert (str(make_header(decode_header(phrase))), at + rest) == (name, " <ann@example.com>")
    assert len(parsed(data)["To"].addresses) == 1
    assert all(
        len(word) <= 75 for line in data.split(b"\r\n") for word in line.split() if word.startswith(b"=?")
    )


@pytest.mark.parametrize("name", ["Ann\r\nBcc: x@evil.test", "Ann\nB", "Ann\x00", "a  b", "Z\ud83d"])
@pytest.mark.parametrize("field", ["to_name", "subject"])
def test_a_name_or_subject_that_is_not_one_clean_line_is_refused(field, name):
    """INP-01."""
    with pytest.raises(InputError) as caught:
        to_mime(message(**{field: name}), "ann@example.com")
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize(
    "subject", ["Your week", "ünï " * 30, "x" * 500, "word " * 60, "=?utf-8?q?x?=", "😀" * 80]
)
def test_a_subject_is_the_same_after_decoding(subject):
    data = to_mime(message(subject=subject.strip()), "ann@example.com")
    assert parsed(data)["Subject"] == subject.strip()
    head = data.split(b"\r\n\r\n")[0]
    assert all(len(line) <= 78 for line in head.split(b"\r\n") if not line.startswith((b"X-Op", b"List-Un")))


@pytest.mark.parametrize(
    "name", ["To", "cc", "BCC", "Resent-To", "From", "Subject", "Content-Type", "MIME-Version"]
)
def test_a_frozen_message_cannot_bring_further_recipients_or_our_own_headers(name):
    with pytest.raises(InputError):
        to_mime(message(headers=((name, "x@evil.test"),)), "ann@example.com")


@pytest.mark.parametrize("value", ["a\r\nBcc: x@evil.test", "a\x00", "ü", "x" * 1000])
def test_a_header_that_is_not_one_ascii_line_is_refused(value):
    with pytest.raises(InputError):
        to_mime(message(headers=(("X-Thing", value),)), "ann@example.com")


@pytest.mark.parametrize(
    "recipient",
    ["", "a@example.com, b@example.com", "a@example.com\r\nRCPT TO:<x@evil.test>", '"a b"@example.test'],
)
def test_a_recipient_that_is_not_one_plain_address_is_refused_without_being_quoted(recipient):
    with pytest.raises(InputError) as caught:
        to_mime(message(), recipient)
    assert "@" not in str(caught.value)


def test_a_local_part_beyond_ascii_goes_out_as_it_is_and_only_there():
    """INP-04."""
    data = to_mime(message(to_name="Jörg"), "jörg@bücher.example")
    assert " <jörg@xn--bcher-kva.example>\r\n".encode() in data
    assert to_mime(message(to_name="Jörg"), "jorg@bücher.example").isascii()


def test_keys_and_addresses_of_machines_stay_on_one_line():
    lines = to_mime(message(), "ann@example.com").split(b"\r\n")
    assert f"X-Operation-Key: {KEY}".encode() in lines
    assert f"List-Unsubscribe: {URL}".encode() in lines


@pytest.mark.parametrize(
    "body",
    [
        "<p>" + "x" * 20_000 + "</p>\n",
        "a\n.\n..\nFrom me\n--=_0123456789abcdef\ntrailing \t\n",
        "ünï 😀\n" * 300,
        "\n\n\n",
    ],
)
def test_bodies_are_the_same_after_decoding_and_the_wire_is_strict(body):
    """INP-12."""
    data = to_mime(message(text=body, html=body), "ann@example.com")
    assert bodies(data) == [("text/plain", body), ("text/html", body)]
    assert b"\n" not in data.replace(b"\r\n", b"")
    assert b"\r" not in data.replace(b"\r\n", b"")
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert data.isascii()


def test_the_bytes_depend_on_message_and_recipient_alone():
    assert to_mime(message(), "ann@example.com") == to_mime(message(), "ann@example.com")
    assert b'boundary="=_0123456789abcdef"' in to_mime(message(), "ann@example.com")
