"""Provider events through a real server, into a real ledger: taken in before they are answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from digest_pipeline.ledger.engine import Ledger
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    delivery_row,
    dump,
    frozen_period,
    migrated,
    plant,
    run_ledger_sql,
    tiny_source,
    tiny_spec,
    wait_until_blocked,
)
from digest_pipeline_tests.subscriber import posts
from digest_pipeline_tests.subscriber.endpoint import Endpoint, served
from digest_pipeline_tests.subscriber.posts import Post

VARIABLES = {
    "DIGEST_EVENTS_RESEND_SECRET": " ".join(posts.RESEND_KEYS),
    "DIGEST_EVENTS_POSTMARK_SECRET": ",".join(posts.PAIRS),
    "DIGEST_EVENTS_MAILJET_SECRET": posts.PAIRS[0],
    "DIGEST_EVENTS_SENDGRID_KEY": posts.sendgrid_public(0),
    "DIGEST_EVENTS_MAILGUN_SECRET": posts.MAILGUN_KEYS[0],
    "DIGEST_EVENTS_SES_TOPICS": posts.TOPIC,
}


def key_of(number: int) -> str:
    return f"tiny_digest:2025-W10:customer-{number:03d}"


@dataclass
class Stage:
    """A frozen period of three customers, every one unknown at a provider, and the server beside it."""

    ledger: Ledger
    manifest: int
    url: str
    endpoint: Endpoint

    def state(self, number: int) -> tuple[str, str | None]:
        row = delivery_row(self.ledger, self.manifest, number)
        return row.state, row.proof

    def doubt(self, provider: str) -> None:
        """Nothing was reported yet, and every delivery is unknown at this provider."""
        run_ledger_sql(self.ledger, "DELETE FROM provider_event")
        run_ledger_sql(self.ledger, "DELETE FROM suppression")
        run_ledger_sql(self.ledger, "DELETE FROM attempt")
        for number in (1, 2, 3):
            plant(self.ledger, self.manifest, number, "unknown", gateway=provider, proof=None)

    def nothing_happened(self) -> bool:
        events = dump(self.ledger, "provider_event") + dump(self.ledger, "suppression")
        return not events and {self.state(number)[0] for number in (1, 2, 3)} == {"unknown"}


@pytest.fixture(scope="module")
def sqlite_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("events")
    yield from _staged(folder, f"sqlite:///{folder / 'ledger.db'}")


@pytest.fixture
def stage(tmp_path: Path, ledger_url: str) -> Iterator[Stage]:
    yield from _staged(tmp_path, ledger_url)


def _staged(folder: Path, url: str) -> Iterator[Stage]:
    with opened(folder, url) as stage:
        yield stage


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Stage]:
    with (
        migrated(url) as ledger,
        tiny_source(folder, customers=3) as source,
        served(url, **VARIABLES) as endpoint,
    ):
        (manifest,) = frozen_period(ledger, tiny_spec(folder), PERIOD, source)
        yield Stage(ledger, manifest, url, endpoint)


def resend(kind: str, number: int, identity: str = "msg_1") -> Post:
    body = posts.resend_body(kind, key_of(number))
    return posts.resend(body, stamp=posts.soon(), identity=identity)


DELIVERED = {
    "resend": lambda: resend("delivered", 1),
    "postmark": lambda: posts.basic(posts.postmark_body("Delivery", key_of(1)), posts.PAIRS[1]),
    "mailjet": lambda: posts.basic([posts.mailjet_body("sent", key_of(1))]),
    "mailgun": lambda: posts.mailgun(posts.mailgun_body("delivered", key_of(1)), stamp=posts.soon()),
    "sendgrid": lambda: posts.sendgrid([posts.sendgrid_body("delivered", key_of(1))], stamp=posts.soon()),
}


@pytest.mark.parametrize("provider", DELIVERED)
def test_an_event_settles_an_unknown_and_a_replay_is_a_no_op(sqlite_stage: Stage, provider: str) -> None:
    """CLS-15, SEC-07"""
    sqlite_stage.doubt(provider)
    post = DELIVERED[provider]()
    assert sqlite_stage.endpoint.report(provider, post) == 200
    assert sqlite_stage.state(1) == ("sent", "delivered")
    before = dump(sqlite_stage.ledger, "delivery"), dump(sqlite_stage.ledger, "provider_event")
    assert sqlite_stage.endpoint.report(provider, post) == 200
    assert (dump(sqlite_stage.ledger, "delivery"), dump(sqlite_stage.ledger, "provider_event")) == before


@pytest.mark.parametrize(
    ("provider", "post", "status"),
    [
        ("brevo", posts.bearer({}), 404),
        ("nobody", Post(b"{}"), 404),
        ("resend", Post(b"{}"), 401),
        ("postmark", posts.basic({}, "hook:guess"), 401),
        ("postmark", posts.basic(b"not JSON"), 400),
        ("ses", posts.sns({}, TopicArn="arn:aws:sns:eu-west-1:999900001111:x"), 403),
        ("postmark", posts.basic(b'"' + b"x" * (4 * 1024 * 1024) + b'"'), 413),
        ("postmark", Post(b"", {"content-length": "99999999999"}), 413),
    ],
    ids=["unconfigured", "unknown", "unsigned", "password", "unreadable", "foreign", "too-large", "declared"],
)
def test_what_is_not_taken_says_why_and_changes_nothing(
    sqlite_stage: Stage, provider: str, post: Post, status: int
) -> None:
    """SEC-09 among them."""
    sqlite_stage.doubt("postmark")
    assert sqlite_stage.endpoint.report(provider, post) == status
    assert sqlite_stage.nothing_happened()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_only_a_post_is_an_event(sqlite_stage: Stage, method: str) -> None:
    assert sqlite_stage.endpoint.send(method, "/events/resend").status == 405


def test_an_event_of_a_kind_that_we_do_not_know_is_taken_and_ignored(sqlite_stage: Stage) -> None:
    sqlite_stage.doubt("resend")
    assert sqlite_stage.endpoint.report("resend", resend("opened", 1)) == 200
    assert sqlite_stage.nothing_happened()


def test_each_message_of_a_request_is_settled_by_its_own_event(sqlite_stage: Stage) -> None:
    sqlite_stage.doubt("mailjet")
    listed = [
        posts.mailjet_body("sent", key_of(1)),
        posts.mailjet_body("spam", key_of(2)),
        posts.mailjet_body("blocked", key_of(3)),
        posts.mailjet_body("sent", "somebody-elses:2025-W10:key"),
    ]
    assert sqlite_stage.endpoint.report("mailjet", posts.basic(listed)) == 200
    assert [sqlite_stage.state(number) for number in (1, 2, 3)] == [
        ("sent", "delivered"),
        ("sent", "complained"),
        ("failed", None),
    ]
    assert [row["reason"] for row in dump(sqlite_stage.ledger, "suppression")] == ["complained"]


def test_a_ledger_that_fails_midway_is_a_5xx_with_nothing_half_applied(stage: Stage) -> None:
    """SEC-09: the third delivery's update fails; neither the first two nor any event is kept."""
    stage.doubt("mailjet")
    _break(stage, number=3)
    listed = posts.basic([posts.mailjet_body("spam", key_of(number)) for number in (1, 2, 3)])
    assert stage.endpoint.report("mailjet", listed) == 503
    assert stage.nothing_happened()
    _mend(stage)
    assert stage.endpoint.report("mailjet", listed) == 200
    assert {stage.state(number) for number in (1, 2, 3)} == {("sent", "complained")}


def test_a_server_that_is_killed_midway_leaves_nothing_and_the_repeat_is_taken(
    tmp_path: Path, postgres_url: str
) -> None:
    """SEC-09: SIGKILL behind the event's insert, before the commit: it waits for a row that we hold."""
    with opened(tmp_path, postgres_url) as stage:
        stage.doubt("resend")
        caller = threading.Thread(target=_ignore_the_loss, args=(stage, resend("complained", 1)))
        with stage.ledger.write() as conn:
            conn.execute(text("SELECT 1 FROM delivery WHERE ordinal = 1 FOR UPDATE"))
            caller.start()
            wait_until_blocked(stage.ledger)
            stage.endpoint.kill()
        caller.join(30)
        assert stage.nothing_happened()
        with served(stage.url, **VARIABLES) as endpoint:
            assert endpoint.report("resend", resend("complained", 1)) == 200
        assert stage.state(1) == ("sent", "complained")


def test_two_servers_that_are_told_the_same_at_once_apply_it_once(tmp_path: Path, postgres_url: str) -> None:
    with opened(tmp_path, postgres_url) as stage:
        stage.doubt("resend")
        with served(stage.url, **VARIABLES) as other:
            statuses: list[int] = []
            callers = [
                threading.Thread(
                    target=lambda e, n: statuses.append(e.report("resend", resend("bounced", 1, f"msg_{n}"))),
                    args=(endpoint, number % 3),
                )
                for number, endpoint in enumerate([stage.endpoint, other] * 6)
            ]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join(60)
        assert statuses == [200] * 12
        assert len(dump(stage.ledger, "provider_event")) == 3
        assert stage.state(1) == ("sent", "bounced")


def _ignore_the_loss(stage: Stage, post: Post) -> None:
    try:
        stage.endpoint.report("resend", post)
    except OSError:
        return


def _break(stage: Stage, number: int) -> None:
    """Let the database refuse any change of one delivery."""
    if stage.ledger.is_postgresql:
        run_ledger_sql(
            stage.ledger,
            "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''broken''; END'",
        )
        when = f"FOR EACH ROW WHEN (OLD.ordinal = {number}) EXECUTE FUNCTION broken()"
        run_ledger_sql(stage.ledger, f"CREATE TRIGGER broken BEFORE UPDATE ON delivery {when}")
    else:
        run_ledger_sql(
            stage.ledger,
            f"CREATE TRIGGER broken BEFORE UPDATE ON delivery WHEN OLD.ordinal = {number} "
            "BEGIN SELECT RAISE(ABORT, 'broken'); END",
        )


def _mend(stage: Stage) -> None:
    run_ledger_sql(
        stage.ledger, "DROP TRIGGER broken" + (" ON delivery" if stage.ledger.is_postgresql else "")
    )
