"""The notify block of a specification, and how an incident reads."""

import json
import re

import pytest

from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import SpecError
from digest_pipeline.keys import operation_key
from digest_pipeline.ledger.incidents import Incident
from digest_pipeline.notify.channels import channels_of, email_channel, recipient_of, require_channels
from digest_pipeline.notify.incident import Facts, Kind, Severity
from digest_pipeline.notify.wording import as_fields, as_message, as_text, headline, mail_key
from digest_pipeline_tests.harness.ledgers import tiny_spec

SECRET = "a-signing-key-of-length"
ALL = {
    "webhook": {"env": "NOTIFY_HOOK"},
    "webhook_secret": {"env": "NOTIFY_SECRET"},
    "email": {"env": "NOTIFY_MAIL"},
}
FACTS = Facts(
    "3 violations: sent twice.",
    "digest trace tiny_digest:2025-W10:customer-002",
    (("violations", 3),),
    ("tiny_digest:2025-W10:customer-002",),
    "run-1",
    "tiny_digest_weekly",
    "delivery_outcomes",
)


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("NOTIFY_HOOK", "https://hooks.example.test/T0/secret-path?token=x")
    monkeypatch.setenv("NOTIFY_SECRET", SECRET)
    monkeypatch.setenv("NOTIFY_MAIL", "ops@example.test, Second@Example.TEST,ops@example.test")
    return monkeypatch


def an_incident(kind: Kind = Kind.CHECK_FAILED, period: str = "2025-W10", facts: Facts = FACTS) -> Incident:
    return Incident(
        "0f" * 16, kind, "tiny_digest", period, "no_duplicate_sends", "critical", facts.to_json(), 1,
        1_760_000_000_123_456, 1, 1, None,
    )  # fmt: skip


def test_without_a_notify_block_only_the_log_is_told(tmp_path):
    digest = tiny_spec(tmp_path)
    require_channels(digest)
    assert channels_of(digest, Severity.CRITICAL) == ["log"]
    assert channels_of(None, Severity.CRITICAL) == ["log"]


def test_each_recipient_is_a_channel_of_its_own_and_warnings_are_only_logged(tmp_path, environment):
    digest = tiny_spec(tmp_path, notify=ALL)
    require_channels(digest)
    mails = [email_channel("ops@example.test"), email_channel("Second@example.test")]
    assert channels_of(digest, Severity.ERROR) == ["log", "webhook", *mails]
    assert channels_of(digest, Severity.WARNING) == ["log"]
    assert channels_of(digest, Severity.INFO) == ["log"]
    assert [recipient_of(digest, one) for one in mails] == ["ops@example.test", "Second@example.test"]
    assert not any("@" in one for one in mails)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        (
            "NOTIFY_HOOK",
            "ftp://hooks.example.test/x",
            r"notify\.webhook \(NOTIFY_HOOK\): must be a web address",
        ),
        ("NOTIFY_HOOK", "https://ann:secret-pw@hooks.example.test/x", "must hold no user and password"),
        ("NOTIFY_HOOK", "https://", "must be a web address"),
        ("NOTIFY_HOOK", "http://secret..b/", "must be a web address"),
        ("NOTIFY_HOOK", "http://secret:99999/", "must be a web address"),
        ("NOTIFY_HOOK", f"http://secret{'a' * 58}.test/", "must be a web address"),
        ("NOTIFY_HOOK", "http://secret\u2100.test/", "must be a web address"),
        ("NOTIFY_SECRET", "short", "too short to sign with"),
        ("NOTIFY_MAIL", "ops@example.test, nobody@@secret.test", r"notify\.email \(NOTIFY_MAIL\): number 2"),
        ("NOTIFY_MAIL", "ops@example.test,", "number 2"),
    ],
)
def test_a_wrong_value_is_refused_when_the_file_is_read_and_not_quoted(
    tmp_path, environment, variable, value, says
):
    environment.setenv(variable, value)
    with pytest.raises(SpecError, match=says) as caught:
        tiny_spec(tmp_path, notify=ALL)
    assert "secret" not in str(caught.value).removeprefix(str(tmp_path)).replace("webhook_secret", "")


@pytest.mark.parametrize("variable", ["NOTIFY_HOOK", "NOTIFY_SECRET", "NOTIFY_MAIL"])
def test_a_variable_that_is_not_set_is_named_when_the_code_is_loaded(tmp_path, environment, variable):
    environment.delenv(variable)
    digest = tiny_spec(tmp_path, notify=ALL)
    with pytest.raises(SpecError, match=rf"tiny_digest: notify\.\w+: .*{variable} is not set"):
        require_channels(digest)


def test_an_empty_value_switches_a_channel_off(tmp_path, environment):
    environment.setenv("NOTIFY_HOOK", "")
    environment.setenv("NOTIFY_SECRET", "")
    environment.setenv("NOTIFY_MAIL", "")
    digest = tiny_spec(tmp_path, notify=ALL)
    require_channels(digest)
    assert channels_of(digest, Severity.ERROR) == ["log"]


def test_a_secret_without_anything_to_sign_is_refused(tmp_path, environment):
    with pytest.raises(SpecError, match=r"notify: notify\.webhook_secret signs what goes to notify\.webhook"):
        tiny_spec(tmp_path, notify={"webhook_secret": {"env": "NOTIFY_SECRET"}})
    environment.setenv("NOTIFY_HOOK", "")
    with pytest.raises(SpecError, match=r"notify\.webhook is empty"):
        require_channels(tiny_spec(tmp_path, notify=ALL))


def test_a_sender_that_is_no_mailbox_and_a_field_that_does_not_exist_are_named(tmp_path, environment):
    digest = tiny_spec(tmp_path, notify=ALL | {"sender": "Alarms, Inc <a@b.test>"})
    with pytest.raises(SpecError, match=r"tiny_digest: notify\.sender: From: write exactly one mailbox"):
        require_channels(digest)
    with pytest.raises(SpecError, match=r"notify\.mail: no such field; did you mean 'email'"):
        tiny_spec(tmp_path, notify={"mail": {"env": "X"}})


def test_every_kind_has_a_headline():
    for kind in Kind:
        line = headline(an_incident(kind))
        assert re.fullmatch(r"tiny_digest 2025-W10: [a-z].*", line), line


def test_an_incident_says_what_how_many_which_and_what_next():
    text = as_text(an_incident(), "https://dagster.example.test")
    for part in (
        "tiny_digest 2025-W10: the check no_duplicate_sends fails",
        "3 violations: sent twice.",
        "violations: 3",
        "for example tiny_digest:2025-W10:customer-002",
        "next: digest trace tiny_digest:2025-W10:customer-002",
        "run: https://dagster.example.test/runs/run-1",
    ):
        assert part in text.splitlines()
    assert "run: run-1" in as_text(an_incident(), "").splitlines()


def test_the_fields_are_plain_data_and_name_no_link_without_a_ui():
    found = json.loads(json.dumps(as_fields(an_incident(), "")))
    assert found["counts"] == {"violations": 3}
    assert (found["url"], found["run_id"], found["period"]) == ("", "run-1", "2025-W10")


def test_facts_come_back_as_they_were_stored():
    assert Facts.from_json(FACTS.to_json()) == FACTS
    assert Facts.from_json(Facts("x").to_json()) == Facts("x")


def test_the_mail_is_the_same_bytes_at_every_try_and_can_be_put_on_the_wire():
    first, second = (as_message(an_incident(), "Alarms <a@sender.test>", "") for _ in range(2))
    assert first.to_bytes() == second.to_bytes()
    wire = to_mime(first, "ops@example.test").decode()
    assert "Subject: [critical] tiny_digest 2025-W10: the check no_duplicate_sends" in wire
    assert "Auto-Submitted: auto-generated" in wire
    assert "<pre>" in wire


def test_the_key_of_a_mail_can_be_no_operation_key():
    key = mail_key(an_incident(), "ab12")
    assert key == f"incident/{'0f' * 16}/ab12"
    assert "/" not in operation_key("incident", "2025-W10", "default", "a/b").partition(":")[0]
