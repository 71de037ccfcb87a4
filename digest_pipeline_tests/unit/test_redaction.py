"""What this process knows to be secret is in nothing that it says, whoever writes the line."""

import base64
import html
import io
import json
import logging
import re
import subprocess
import sys
from urllib.parse import quote, quote_plus

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline import redaction
from digest_pipeline.redaction import HIDDEN, forms, keep_environment, keep_passwords_of, keep_secret, redact
from digest_pipeline.telemetry import configure_logging

SECRET = "S3cr3t@key/with+odd=chars&\"quote'"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Each test begins with no secret known, and leaves the other loggers as they were."""
    monkeypatch.setattr(redaction, "_patterns", {})
    monkeypatch.setattr(redaction, "_found", None)
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


@pytest.mark.parametrize(
    "form",
    [
        str,
        repr,
        json.dumps,
        html.escape,
        quote,
        quote_plus,
        lambda s: re.sub("%..", lambda m: m[0].lower(), quote(s, safe="")),
        lambda s: base64.b64encode(s.encode()).decode(),
        lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
        lambda s: base64.b64encode(f"user:{s}".encode()).decode(),
        lambda s: base64.b64encode(f"\0user1\0{s}".encode()).decode(),
        lambda s: repr(s.encode()),
    ],
)
def test_a_secret_is_removed_in_every_form_in_which_a_text_can_hold_it(form):
    """SEC-01, SEC-02: also inside of what AUTH PLAIN and basic authentication encode."""
    keep_secret(SECRET)
    said = redact(f"the server said {form(SECRET)}!")
    assert HIDDEN in said
    for found in (SECRET, form(SECRET), "S3cr3t"):
        assert found not in said


@given(
    st.binary(min_size=0, max_size=9),
    st.text(st.characters(codec="utf-8"), min_size=12, max_size=30),
    st.binary(max_size=9),
)
def test_no_base64_of_anything_around_a_secret_can_be_decoded_to_it(before, secret, after):
    text = base64.b64encode(before + secret.encode() + after).decode()
    assert any(form in text for form in forms(secret))


def test_an_ordinary_word_that_is_somebodys_password_hides_no_part_of_another():
    keep_passwords_of("postgresql+psycopg://app:postgres@db/ledger")
    assert redact("postgresql refused user app with password postgres") == (
        "postgresql refused user app with password <secret>"
    )


def test_variables_named_like_secrets_and_passwords_of_urls_are_known_from_the_start():
    keep_environment(
        {
            "RESEND_API_KEY": "re_AbCdEf123",
            "DIGEST_EVENTS_POSTMARK_SECRET": "hook:p0stm4rk-pass",
            "DIGEST_UNSUBSCRIBE_KEYS": "new-key-0123456789, old-key-0123456789",
            "DIGEST_LEDGER_URL": "postgresql+psycopg://app:p%40ss%2Fw0rd@db/ledger",
            "DIGEST_HOME": "/var/lib/digest",
        }
    )
    said = redact(
        "re_AbCdEf123 p0stm4rk-pass old-key-0123456789 new-key-0123456789 p%40ss%2Fw0rd p@ss/w0rd /var/lib/digest"
    )
    assert said == " ".join([HIDDEN] * 6 + ["/var/lib/digest"])


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer abc.def.ghi",
        "headers={'Authorization': 'Basic dXNlcjpwYXNz', 'Accept': '*/*'}",
        "('Cookie', 'session=abc.def.ghi')",
        "webhook-signature: v1,abc.def.ghi",
        "X-Postmark-Server-Token = abc.def.ghi",
        "api-key: abc.def.ghi",
    ],
)
def test_headers_that_authenticate_lose_their_values_even_when_nobody_knew_them(line):
    """SEC-02."""
    said = redact(line)
    assert "abc.def" not in said
    assert "dXNl" not in said
    assert HIDDEN in said


@pytest.mark.parametrize(
    "line", ["sent 5 of 7", "gate sandbox:a5a4d795f72d closed", "customer_digest:2026-W42:c-1"]
)
def test_what_holds_no_secret_is_left_as_it_is(line):
    keep_secret(SECRET)
    assert redact(line) == line


@pytest.mark.parametrize("name", ["aiohttp.client", "aiosmtplib", "asyncio", "botocore.auth", "anything"])
def test_other_libraries_at_debug_say_no_secret_through_any_handler(name, monkeypatch):
    """SEC-02: in the message, in its arguments and in the traceback behind it."""
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    configure_logging("DEBUG")
    said = io.StringIO()
    logger, handler = logging.getLogger(name), logging.StreamHandler(said)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        logger.debug("request to %s with %r", "host", {"Authorization": f"Bearer {SECRET}"})
        logger.debug("harmless %s", "line")
        try:
            raise ValueError(f"535 {base64.b64encode(SECRET.encode()).decode()}")
        except ValueError:
            logger.exception("the server said %s", quote(SECRET, safe=""))
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
    text = said.getvalue()
    assert "harmless line" in text
    assert "ValueError: 535 <secret>" in text
    assert not [form for form in forms(SECRET) if form in text]


def test_our_own_lines_hold_none_either(capsys, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    configure_logging("DEBUG")
    structlog.get_logger("digest_pipeline").info("event", detail=f"said {SECRET}", other=SECRET)
    said = capsys.readouterr().err
    assert said.count(HIDDEN) >= 2
    assert not [form for form in forms(SECRET) if form in said]


def test_a_traceback_that_ends_the_process_or_a_thread_holds_none():
    """SEC-01: an error nobody expected, with the secret in its text."""
    script = (
        "import threading; from digest_pipeline.redaction import keep_secret\n"
        "from digest_pipeline.telemetry import redact_tracebacks\n"
        "import sys; secret = sys.stdin.read(); keep_secret(secret); redact_tracebacks()\n"
        "def fail(): raise RuntimeError('thread ' + secret)\n"
        "one = threading.Thread(target=fail); one.start(); one.join()\n"
        "raise RuntimeError(secret)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=SECRET, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "RuntimeError: thread <secret>" in done.stderr
    assert "RuntimeError: <secret>" in done.stderr
    assert "S3cr3t" not in done.stderr
