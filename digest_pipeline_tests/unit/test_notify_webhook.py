"""The webhook against a real receiver: only an answer of the 200s counts, nothing is followed."""

import asyncio
import hashlib
import hmac
import json
from datetime import timedelta

import pytest

from digest_pipeline.gateways.http import HttpLimits
from digest_pipeline.notify import webhook
from digest_pipeline.notify.channels import Told, Try
from digest_pipeline_tests.harness.ledgers import tiny_spec
from digest_pipeline_tests.harness.webhook import DROP, SILENT, Receiver, receiver
from digest_pipeline_tests.unit.test_notify import SECRET, an_incident

HASTY = HttpLimits(total=timedelta(seconds=0.5), connect=timedelta(seconds=5))
ALL = {"webhook": {"env": "NOTIFY_HOOK"}, "webhook_secret": {"env": "NOTIFY_SECRET"}}


def post(tmp_path, monkeypatch, url: str, secret: str = SECRET, limits=webhook.LIMITS) -> Try:
    monkeypatch.setenv("NOTIFY_HOOK", url)
    monkeypatch.setenv("NOTIFY_SECRET", secret)
    return asyncio.run(webhook.post(tiny_spec(tmp_path, notify=ALL), an_incident(), "", limits))


def test_it_posts_json_under_the_incidents_id_with_a_signature(tmp_path, monkeypatch):
    with receiver(200) as hook:
        assert post(tmp_path, monkeypatch, hook.url) == Try(Told.YES, "status 200")
    (body,), (headers,) = hook.bodies, hook.headers
    expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["X-Digest-Signature"] == f"sha256={expected}"
    assert headers["Idempotency-Key"] == json.loads(body)["id"] == "0f" * 16
    assert headers["Content-Type"] == "application/json; charset=utf-8"


def test_without_a_secret_it_is_not_signed(tmp_path, monkeypatch):
    with receiver() as hook:
        assert post(tmp_path, monkeypatch, hook.url, secret="").told is Told.YES
    assert "X-Digest-Signature" not in hook.headers[0]


@pytest.mark.parametrize("status", [500, 503, 429, 404, 401])
def test_an_answer_that_is_no_success_is_tried_again(tmp_path, monkeypatch, status):
    with receiver(status) as hook:
        assert post(tmp_path, monkeypatch, hook.url) == Try(Told.NOT_YET, f"status {status}")
    assert len(hook.bodies) == 1


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_is_not_followed(tmp_path, monkeypatch, status):
    with receiver(status) as hook:
        assert post(tmp_path, monkeypatch, hook.url).told is Told.NOT_YET
    assert len(hook.bodies) == 1


def test_a_receiver_that_closes_the_connection_may_have_heard(tmp_path, monkeypatch):
    with receiver(DROP) as hook:
        assert post(tmp_path, monkeypatch, hook.url).told is Told.PERHAPS
    assert len(hook.bodies) == 1


def test_a_receiver_that_says_nothing_is_given_up_on(tmp_path, monkeypatch):
    with receiver(SILENT) as hook:
        assert post(tmp_path, monkeypatch, hook.url, limits=HASTY).told is Told.PERHAPS
        assert len(hook.bodies) == 1


def test_a_receiver_that_is_not_there_heard_nothing_and_is_not_named(tmp_path, monkeypatch):
    with receiver() as hook:
        gone: Receiver = hook
    tried = post(tmp_path, monkeypatch, gone.url + "/secret-path")
    assert tried.told is Told.NOT_YET
    assert "secret" not in tried.why
    assert "127.0.0.1" not in tried.why
