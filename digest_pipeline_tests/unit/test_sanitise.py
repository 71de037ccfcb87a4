import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.gateways.sanitise import MAX_DETAIL, sanitise


@pytest.mark.parametrize(
    "text",
    [
        "no such mailbox personal@example.test here",
        "<personal@example.test>: 550",
        '"personal x"@example.test refused',
        "personal%40example.test refused",
        "personal\uff20example.test refused",
        "http://u:personal@host.test/path failed",
        "https://api.test/send?token=personal&x=1",
        "Authorization: Bearer personal.token-1",
        "Authorization: Basic cGVyc29uYWw=personal",
        "api_key=personal1 was revoked",
        '{"password": "personal"}',
        "key re_personal1234567 is restricted",
        "jwt eyJhbGciOiJIUzI1NiJ9.personal.x",
        "x" * 980 + " personal@example.test",
        "cookie: personal",
        'Authorization: Digest username="personal", realm="r", response="personal1"',
        "Digest username=personal, response=personal1",
    ],
)
def test_addresses_tokens_and_credentials_are_removed(text):
    assert "personal" not in sanitise(text)


@pytest.mark.parametrize(
    "text",
    [
        "422 invalid_recipient the address can't receive mail",
        "550 5.1.1 user unknown",
        "daily quota exceeded (10000)",
        "run 'digest db upgrade' first",
    ],
)
def test_ordinary_reasons_stay_readable(text):
    assert sanitise(text) == text


@pytest.mark.parametrize("form", [str, quote, lambda s: quote(s, safe=""), repr,
                                  lambda s: base64.b64encode(s.encode()).decode()])  # fmt: skip
def test_known_secrets_are_removed_in_every_encoding(form):
    secret = "S3cr3t/key+1"
    assert form(secret).strip("'") not in sanitise(f"failed with {form(secret)} at once", hide=[secret])


@given(st.text(max_size=2000))
def test_the_result_is_one_short_printable_line(text):
    found = sanitise(text)
    assert len(found) <= MAX_DETAIL
    assert found.isprintable()


@given(st.text(max_size=300), st.text(max_size=300), st.emails())
def test_no_address_survives_whatever_stands_around_it(before, after, address):
    assert address not in sanitise(f"{before} {address} {after}")
