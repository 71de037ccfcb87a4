"""``digest subscriber serve`` and ``digest content serve``: what they refuse before anything is served."""

import pytest

from digest_pipeline.ledger.engine import Ledger
from digest_pipeline_tests.gateways.stands_push import SECRET
from digest_pipeline_tests.harness.command import Shell
from digest_pipeline_tests.harness.ledgers import migrated, tiny_spec

PUSHING = {
    "gateway": {"kind": "https_push", "settings": {"url": "https://push.example", "secret": {"env": "S"}}}
}
SANDBOX = {"gateway": {"kind": "sandbox", "settings": {"url": "http://127.0.0.1:9", "api_key": "k"}}}


@pytest.fixture
def shell(tmp_path):
    return Shell(
        tmp_path,
        {
            "DIGEST_HOME": str(tmp_path / "home"),
            "DIGEST_SPECS": str(tmp_path / "specs"),
            "DIGEST_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}",
            "DIGEST_SUBSCRIBER_SECRET": SECRET,
            "DIGEST_ENVIRONMENT": "test",
        },
    )


def spec(shell, fields):
    folder = shell.folder / "specs"
    folder.mkdir()
    tiny_spec(folder, **fields)


@pytest.mark.parametrize(
    ("changed", "arguments", "words"),
    [
        ({"DIGEST_SUBSCRIBER_SECRET": "a-plain-secret-0123456789"}, (), "DIGEST_SUBSCRIBER_SECRET"),
        (
            {"DIGEST_SUBSCRIBER_SECRET": "", "DIGEST_SUBSCRIBER_PREVIOUS_SECRET": SECRET},
            (),
            "PREVIOUS_SECRET",
        ),
        ({"DIGEST_SUBSCRIBER_SECRET": ""}, ("--digest", "tiny_digest"), "DIGEST_SUBSCRIBER_SECRET"),
        ({"DIGEST_SUBSCRIBER_CONTENT_URL": "https://c.example"}, (), "DIGEST_CONTENT_TOKEN"),
        ({"DIGEST_CONTENT_TOKEN": "short"}, (), "DIGEST_CONTENT_TOKEN"),
        ({}, ("--digest", "nothing"), "tiny_digest"),
        ({}, ("--host", "256.1.1.1"), "--host"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_fix(shell, changed, arguments, words):
    spec(shell, SANDBOX)
    said = shell.run("subscriber", "serve", "--port", "0", *arguments, **changed)
    assert said.code == 2
    assert words in " ".join(said.error.split())
    assert "a-plain-secret" not in said.err


def test_a_certificate_without_its_key_is_refused(shell):
    spec(shell, SANDBOX)
    (shell.folder / "cert.pem").write_text("no certificate")
    said = shell.run("subscriber", "serve", "--port", "0", "--cert", "cert.pem")
    assert said.code == 2
    assert "--cert and --key" in said.error
    both = shell.run("subscriber", "serve", "--port", "0", "--cert", "cert.pem", "--key", "cert.pem")
    assert both.code == 2
    assert "PEM" in both.error


def test_a_subscriber_that_would_push_on_is_refused(shell):
    spec(shell, PUSHING)
    said = shell.run("subscriber", "serve", "--port", "0", S=SECRET)
    assert said.code == 2
    assert "DIGEST_SUBSCRIBER_SPECS" in said.error


def test_serving_another_environments_ledger_does_not_bind_it_here(shell):
    """DUP-26."""
    url = shell.variables["DIGEST_LEDGER_URL"]
    migrated(url, "production").close()
    spec(shell, SANDBOX)
    shell.run("subscriber", "serve", "--port", "0", "--host", "256.1.1.1")
    with Ledger(url) as ledger, ledger.read() as conn:
        assert conn.exec_driver_sql("SELECT environment FROM ledger_identity").scalar_one() == "production"


def test_the_content_path_needs_its_token(shell):
    said = shell.run("content", "serve", "--port", "0")
    assert said.code == 2
    assert "DIGEST_CONTENT_TOKEN" in said.error
