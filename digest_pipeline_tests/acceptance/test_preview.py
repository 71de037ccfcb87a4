"""What ``digest preview`` writes: the message as it goes out, and its HTML part."""

import email
import email.policy
from pathlib import Path

import pytest

from digest_pipeline_tests.cases.stage import NAMED, shell_before
from digest_pipeline_tests.harness.ledgers import dump

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)]


def test_files_hold_the_frozen_message_for_its_one_recipient_and_nothing_is_written_to_the_ledger(
    open_desk, tmp_path, ledger_url
):
    desk = open_desk(2)
    shell = shell_before(tmp_path, ledger_url, desk.sandbox)
    before = dump(desk.ledger, "delivery")
    one = ("preview", *NAMED, "--customer", "customer-002", "--json")
    said = shell.run(*one, "--eml", "here/two.eml", "--html", "two.html")
    assert (said.code, said.json["files"]) == (0, ["here/two.eml", "two.html"]), said.err
    message = email.message_from_bytes((tmp_path / "here/two.eml").read_bytes(), policy=email.policy.default)
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/alternative",
        "text/plain",
        "text/html",
    ]
    assert (message["To"].addresses[0].addr_spec, len(message["To"].addresses)) == (
        "reader-2@example.test",
        1,
    )
    assert message["X-Operation-Key"] == said.json["operation_key"]
    assert (tmp_path / "two.html").read_text(encoding="utf-8") == said.json["html"]
    folder = shell.run(*one, "--out", "all", "--html", "only.html").json["files"]
    assert [Path(name).parent.name for name in folder] == ["all", ""]
    assert dump(desk.ledger, "delivery") == before


def test_a_file_that_cannot_be_written_is_named(open_desk, tmp_path, ledger_url):
    desk = open_desk(1)
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    said = shell_before(tmp_path, ledger_url, desk.sandbox).run(
        "preview", *NAMED, "--customer", "customer-001", "--html", "taken/two.html"
    )
    assert (said.code, "taken/two.html: cannot be written" in said.error) == (2, True)
