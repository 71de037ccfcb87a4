"""`digest notify`: whether anybody would hear, asked before it is needed."""

import pytest

from digest_pipeline_tests.harness.command import Shell
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT, migrated
from digest_pipeline_tests.harness.rim import write_spec
from digest_pipeline_tests.harness.sandbox import API_KEY
from digest_pipeline_tests.harness.webhook import receiver

NOTIFY = {"webhook": {"env": "NOTIFY_HOOK"}, "email": {"env": "NOTIFY_MAIL"}}
OPERATORS = "ops@example.test, second@example.test"
TEST = ("notify", "test", "--digest", "tiny_digest")


@pytest.fixture
def shell(tmp_path, ledger_url, sandbox, monkeypatch):
    monkeypatch.setenv("DIGEST_SANDBOX_URL", sandbox.url)
    folder = tmp_path / "work"
    folder.mkdir()
    write_spec(tmp_path, notify=NOTIFY)
    variables = {
        "DIGEST_LEDGER_URL": ledger_url,
        "DIGEST_SPECS": str(tmp_path),
        "DIGEST_ENVIRONMENT": ENVIRONMENT,
        "DIGEST_SANDBOX_URL": sandbox.url,
        "DIGEST_SANDBOX_API_KEY": API_KEY,
        "NOTIFY_MAIL": OPERATORS,
    }
    with migrated(ledger_url):
        yield Shell(folder, variables)


def test_a_test_goes_through_every_channel_and_says_what_each_answered(shell, sandbox):
    with receiver() as hook:
        said = shell.run(*TEST, "--json", NOTIFY_HOOK=hook.url)
    assert said.code == 0, said.err
    assert sorted(one.partition(":")[0] for one in said.json) == ["email", "email", "log", "webhook"]
    assert {answer.split()[0] for answer in said.json.values()} == {"accepted"}
    assert [one["kind"] for one in hook.told] == ["test"]
    assert sandbox.control.statistics()["accepted"] == 2
    assert "@" not in said.out + said.err
    assert "incident_opened" in said.err
    nothing_open = shell.run("notify", "list", NOTIFY_HOOK=hook.url)
    assert (nothing_open.code, nothing_open.out.strip()) == (0, "no incident is open")


def test_a_channel_that_does_not_answer_is_named_and_the_exit_code_is_1(shell, sandbox):
    with receiver(500) as hook:
        said = shell.run(*TEST, "--json", NOTIFY_HOOK=hook.url)
    assert said.code == 1
    assert said.json["webhook"] == "not_told status 500"
    assert sandbox.control.statistics()["accepted"] == 2


def test_a_variable_that_is_not_set_is_named(shell, sandbox):
    said = shell.run(*TEST)
    assert said.code == 2
    assert "tiny_digest: notify.webhook: the environment variable NOTIFY_HOOK is not set" in said.error
    assert sandbox.control.statistics()["arrivals"] == 0
