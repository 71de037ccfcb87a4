"""Unsubscribing through a real server, with the links that are in the frozen mail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from digest_pipeline.content.message import unpack
from digest_pipeline.content.unsubscribe_tokens import UnsubscribeTokens
from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.ledger import claims
from digest_pipeline.ledger.claims import Claimer
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import Settings, unsubscribe_keys
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    dump,
    frozen_period,
    migrated,
    run_ledger_sql,
    states,
    tiny_source,
    tiny_spec,
    wait_until_blocked,
)
from digest_pipeline_tests.subscriber.endpoint import Answer, Endpoint, served
from digest_pipeline_tests.subscriber.posts import Post

NEW, OLD = "new-key-0123456789", "old-key-0123456789"
CONTENT = {"unsubscribe_url": "https://mail.acme.test/unsubscribe/{token}"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
ONE_CLICK = Post(b"List-Unsubscribe=One-Click", FORM)
WHO = Claimer("run-1/s1", "sandbox", "a1", 60_000_000)


@dataclass
class Stage:
    """A period of three customers, frozen with signed links, and the server that takes them."""

    ledger: Ledger
    manifest: int
    endpoint: Endpoint

    def link(self, number: int) -> str:
        """The path of the link in a customer's frozen mail."""
        query = (
            "SELECT c.document, d.payload_hash FROM content c JOIN delivery d "
            "ON d.manifest_id = c.manifest_id AND d.ordinal = c.ordinal WHERE c.ordinal = :o"
        )
        with self.ledger.read() as conn:
            row = conn.execute(text(query), {"o": number}).one()
        headers = dict(unpack(bytes(row.document), row.payload_hash).headers)
        assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        return urlsplit(headers["List-Unsubscribe"].strip("<>")).path

    def click(self, number: int, post: Post = ONE_CLICK) -> Answer:
        return self.endpoint.send("POST", self.link(number), post)

    def suppressed(self) -> list[tuple[str, str, str | None]]:
        rows = dump(self.ledger, "suppression")
        return [(row["tenant"], row["reason"], row["operation_key"]) for row in rows]


@contextmanager
def opened(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("DIGEST_UNSUBSCRIBE_KEYS", OLD)
    with (
        migrated(url) as ledger,
        tiny_source(folder, customers=3) as source,
        served(url, DIGEST_UNSUBSCRIBE_KEYS=f"{NEW} {OLD}") as endpoint,
    ):
        (manifest,) = frozen_period(ledger, tiny_spec(folder, content=CONTENT), PERIOD, source)
        yield Stage(ledger, manifest, endpoint)


@pytest.fixture(scope="module")
def sqlite_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("unsubscribe")
    with pytest.MonkeyPatch.context() as monkeypatch:
        with opened(folder, f"sqlite:///{folder / 'ledger.db'}", monkeypatch) as found:
            yield found


@pytest.fixture
def stage(tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with opened(tmp_path, ledger_url, monkeypatch) as found:
        yield found


@pytest.fixture
def quiet(sqlite_stage: Stage) -> Stage:
    """The shared stage, with nobody suppressed."""
    run_ledger_sql(sqlite_stage.ledger, "DELETE FROM suppression")
    return sqlite_stage


def test_one_click_after_the_freeze_ends_as_suppressed_with_the_manifest_unchanged(stage: Stage) -> None:
    """SEC-15: through the real server; and again is the same. Signed by the key before the newest."""
    frozen = dump(stage.ledger, "manifest"), dump(stage.ledger, "manifest_entry")
    first, second = stage.click(3), stage.click(3)
    assert (first.status, second.status) == (200, 200)
    assert stage.suppressed() == [("default", "opted_out", "tiny_digest:2025-W10:customer-003")]
    with stage.ledger.write() as conn:
        assert claims.claim_due(conn, stage.manifest, 10, WHO).suppressed == 1
    assert states(stage.ledger, stage.manifest) == {1: "claimed", 2: "claimed", 3: "suppressed"}
    assert (dump(stage.ledger, "manifest"), dump(stage.ledger, "manifest_entry")) == frozen


def test_a_click_needs_no_cookie_login_or_redirect_and_gets_none(quiet: Stage) -> None:
    answer = quiet.click(1)
    assert answer.status == 200
    assert {"set-cookie", "location", "www-authenticate"} & set(answer.headers) == set()
    assert answer.headers["cache-control"] == "no-store"


def test_a_form_in_several_parts_is_a_click_too(quiet: Stage) -> None:
    """RFC 8058 allows both encodings."""
    body = b'--b\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b--\r\n'
    post = Post(body, {"content-type": "multipart/form-data; boundary=b"})
    assert quiet.click(1, post).status == 200
    assert len(quiet.suppressed()) == 1


def test_only_a_post_unsubscribes(quiet: Stage) -> None:
    """Mail scanners follow every link."""
    for method in ("GET", "HEAD", "OPTIONS", "PUT"):
        quiet.endpoint.send(method, quiet.link(1))
    assert quiet.suppressed() == []


def test_a_link_shows_a_page_with_a_button_and_nothing_of_the_person(quiet: Stage) -> None:
    page = quiet.endpoint.send("GET", quiet.link(1))
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert '<form method="post">' in page.body
    assert "List-Unsubscribe" in page.body
    for private in ("reader-1", "example.test", "customer-001", "Reader"):
        assert private not in page.body
    assert quiet.endpoint.send("HEAD", quiet.link(1)).body == ""


@pytest.mark.parametrize("post", [Post(b"", FORM), Post(b"unsubscribe=yes", FORM)])
def test_a_post_that_does_not_say_one_click_changes_nothing(quiet: Stage, post: Post) -> None:
    assert quiet.click(1, post).status == 400
    assert quiet.suppressed() == []


def test_a_body_that_is_too_large_changes_nothing(quiet: Stage) -> None:
    post = Post(b"List-Unsubscribe=One-Click" + b"x" * 20_000, FORM)
    assert quiet.click(1, post).status == 413
    assert quiet.suppressed() == []


@pytest.mark.parametrize("kind", ["edited", "of a retired key", "nonsense", "script", "long", "of nobody"])
def test_a_token_that_is_not_ours_is_not_known_and_not_echoed(quiet: Stage, kind: str) -> None:
    token = {
        "edited": quiet.link(1).rpartition("/")[2][:-2] + "AA",
        "of a retired key": UnsubscribeTokens(["retired-key-0123456789"]).sign(
            "tiny_digest:2025-W10:customer-001"
        ),
        "nonsense": "tiny_digest",
        "script": "%3Cscript%3Ealert(1)",
        "long": "x" * 5_000,
        "of nobody": UnsubscribeTokens([NEW]).sign("tiny_digest:2025-W10:customer-999"),
    }[kind]
    answer = quiet.endpoint.send("POST", f"/unsubscribe/{token}", ONE_CLICK)
    assert (answer.status, answer.body) == (404, "this link is not known\n")
    assert quiet.suppressed() == []


def test_a_click_is_durable_before_it_is_answered(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, postgres_url, monkeypatch) as stage:
        answers: list[Answer] = []
        caller = threading.Thread(target=lambda: answers.append(stage.click(1)))
        with stage.ledger.write() as conn:
            conn.execute(text("LOCK TABLE suppression IN ACCESS EXCLUSIVE MODE"))
            caller.start()
            wait_until_blocked(stage.ledger)
            assert answers == []
        caller.join(30)
        assert [answer.status for answer in answers] == [200]
        stage.endpoint.kill()
        assert len(stage.suppressed()) == 1


def test_links_that_nothing_can_sign_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIGEST_UNSUBSCRIBE_KEYS", raising=False)
    digest = tiny_spec(tmp_path, content=CONTENT)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with migrated(url) as ledger, tiny_source(tmp_path, customers=1) as source:
        with pytest.raises(SpecError, match="DIGEST_UNSUBSCRIBE_KEYS"):
            frozen_period(ledger, digest, PERIOD, source)
        assert dump(ledger, "manifest") == []


def test_a_link_without_a_token_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIGEST_UNSUBSCRIBE_KEYS", raising=False)
    content = {"unsubscribe_url": "https://mail.acme.test/leave?key={operation_key}"}
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with migrated(url) as ledger, tiny_source(tmp_path, customers=1) as source:
        assert frozen_period(ledger, tiny_spec(tmp_path, content=content), PERIOD, source)


def test_a_token_is_the_same_every_time_and_each_key_is_still_read() -> None:
    """Secret rotation: it is part of frozen bytes, and people unsubscribe with old mail."""
    key = "tiny_digest:2025-W10:" + "c" * 235
    old, both = UnsubscribeTokens([OLD]), UnsubscribeTokens([NEW, OLD])
    assert both.sign(key) == UnsubscribeTokens([NEW]).sign(key) != old.sign(key)
    assert both.read(old.sign(key)) == both.read(both.sign(key)) == key
    assert old.read(both.sign(key)) is None
    assert len(both.sign(key)) < 450


def test_keys_show_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIGEST_UNSUBSCRIBE_KEYS", NEW)
    monkeypatch.setenv("DIGEST_EVENTS_BREVO_SECRET", "brevo-secret-text")
    shown = repr(Settings.from_environment()) + repr(UnsubscribeTokens([NEW]))
    assert NEW not in shown
    assert "brevo-secret-text" not in shown
    monkeypatch.setenv("DIGEST_UNSUBSCRIBE_KEYS", f"{NEW}, short")
    with pytest.raises(InputError, match="DIGEST_UNSUBSCRIBE_KEYS") as error:
        unsubscribe_keys()
    assert NEW not in str(error.value)
    assert "short," not in str(error.value)


def test_without_keys_there_is_no_such_page(tmp_path: Path) -> None:
    from digest_pipeline.subscriber import unsubscribe

    settings = replace(Settings.from_environment(), unsubscribe_keys=())
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        assert unsubscribe.routes(ledger, settings) == []
