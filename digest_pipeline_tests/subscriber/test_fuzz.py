"""Fuzzing the real servers from their own documents: no error that isn't meant, nothing done for strangers."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from digest_pipeline_tests.harness.delivering import frozen_desk
from digest_pipeline_tests.harness.ledgers import dump
from digest_pipeline_tests.harness.sandbox import as_new
from digest_pipeline_tests.subscriber import posts
from digest_pipeline_tests.subscriber.pushing import giving_content, subscribing, variables_of

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
)
TABLES = ("push_receipt", "provider_event", "suppression", "attempt", "operator_action")

UNSUBSCRIBE_KEY = "a-key-that-signs-links-0123456789"


def fuzz(server, folder: Path, examples: int) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with so many examples for each operation."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json",
        "--checks", ",".join(CHECKS), "--max-examples", str(examples), "--seed", "1",
        "--phases", "examples,coverage,fuzzing", "--tls-verify", str(server.tls.ca_file), "--no-color",
        "--continue-on-failure", "--generation-database", "none",
    ]  # fmt: skip
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DIGEST_")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory, shared_sandbox):
    folder = tmp_path_factory.mktemp("fuzz")
    with frozen_desk(folder, f"sqlite:///{folder / 'ledger.db'}", as_new(shared_sandbox), 3) as made:
        yield folder, made


@pytest.mark.slow
def test_the_subscriber_survives_anything_and_does_nothing_for_strangers(desk, tls):
    folder, made = desk
    variables = variables_of(
        made,
        folder,
        DIGEST_EVENTS_RESEND_SECRET=posts.RESEND_KEYS[0],
        DIGEST_EVENTS_POSTMARK_SECRET=posts.PAIRS[0],
        DIGEST_EVENTS_MAILGUN_SECRET=posts.MAILGUN_KEYS[0],
        DIGEST_EVENTS_MAILJET_SECRET=posts.PAIRS[0],
        DIGEST_EVENTS_SENDGRID_KEY=posts.sendgrid_public(0),
        DIGEST_EVENTS_SES_TOPICS=posts.TOPIC,
        DIGEST_UNSUBSCRIBE_KEYS=UNSUBSCRIBE_KEY,
    )
    with subscribing(folder, tls, variables) as server:
        done = fuzz(server, folder, 25)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "/push" in done.stdout
        assert server.ask("GET", "/healthz").status == 200
    assert "request_failed" not in (folder / "subscriber.log").read_text()
    assert {table: dump(made.ledger, table) for table in TABLES} == {table: [] for table in TABLES}
    assert set(made.counts()) == {"pending"}
    assert list(made.sandbox.oracle().accepted_keys()) == []


@pytest.mark.slow
def test_the_content_path_survives_anything_and_gives_strangers_nothing(desk, tls):
    folder, made = desk
    variables = variables_of(made, folder, DIGEST_CONTENT_TOKEN=secrets.token_urlsafe(32))
    with giving_content(folder, tls, variables) as server:
        done = fuzz(server, folder, 25)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "request_failed" not in (folder / "content.log").read_text()
    assert "@example.test" not in done.stdout
