"""The content path: real servers over TLS, and what they give to whom."""

import asyncio
import json
from urllib.parse import quote

import pytest

from digest_pipeline.demo.push import make_tls
from digest_pipeline.errors import SpecError
from digest_pipeline.ledger.frozen_content import Frozen, Gone
from digest_pipeline.subscriber.content import ContentUnavailableError, HttpContents, LedgerContents
from digest_pipeline_tests.gateways.stands_push import SECRET
from digest_pipeline_tests.harness.delivering import assert_once_each, frozen_desk, key_of
from digest_pipeline_tests.harness.raw_http import RESET, answer, raw_server
from digest_pipeline_tests.harness.sandbox import as_new
from digest_pipeline_tests.subscriber.pushing import (
    body_of,
    giving_content,
    push_gateway,
    receipt_of,
    subscribing,
    variables_of,
)

TOKEN, PREVIOUS = "content-token-of-today-4f81c2", "content-token-of-yesterday-9c2e"


@pytest.fixture(scope="module")
def stage(tmp_path_factory, shared_sandbox, tls):
    """A content server for the module, which takes two tokens, and the desk whose ledger it reads."""
    folder = tmp_path_factory.mktemp("content")
    with frozen_desk(folder, f"sqlite:///{folder / 'ledger.db'}", as_new(shared_sandbox), 4) as desk:
        variables = variables_of(desk, folder, DIGEST_CONTENT_TOKEN=f"{TOKEN} {PREVIOUS}")
        with giving_content(folder, tls, variables) as server:
            yield folder, desk, server


def fetched(contents, key):
    async def run():
        try:
            return await contents.fetch(key)
        finally:
            await contents.close()

    return asyncio.run(run())


def over_https(server, token=TOKEN):
    return HttpContents(server.url, [token], str(server.tls.ca_file))


@pytest.mark.parametrize("token", [TOKEN, PREVIOUS])
def test_both_ways_to_the_content_bring_the_same_message(stage, token):
    _, desk, server = stage
    remote, local = (
        fetched(over_https(server, token), key_of(1)),
        fetched(LedgerContents(desk.ledger), key_of(1)),
    )
    assert isinstance(remote, Frozen)
    assert remote == local
    assert (remote.recipient, remote.digest, remote.tenant) == (
        "reader-1@example.test",
        "tiny_digest",
        "default",
    )
    assert "reader-1" not in repr(remote)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN]
)
def test_without_the_token_nothing_is_given_out_not_even_whether_a_key_exists(stage, header):
    _, _, server = stage
    headers = {} if header is None else {"Authorization": header}
    paths = [f"/content/{quote(key, safe='')}" for key in (key_of(1), "no:such:key")]
    known, unknown = (server.ask("GET", path, None, headers) for path in paths)
    assert known.status == unknown.status == 401
    assert known.body == unknown.body


@pytest.mark.parametrize(
    "key",
    [
        "no:such:key",
        "#" + "0" * 64,
        "a%2Fb:c:d/e",
        "x" * 300,
        "..",
        "../../healthz",
        "\0",
        "é",
        "a?b#c",
        ";--'",
    ],
)
def test_a_key_that_nobody_sealed_is_unknown_however_it_is_written(stage, key):
    _, _, server = stage
    assert fetched(over_https(server), key) is None


def test_a_message_that_is_settled_or_erased_is_given_out_no_more(stage):
    _, desk, server = stage
    desk.sql("UPDATE manifest_entry SET recipient = NULL WHERE ordinal = 3")
    desk.sql("UPDATE delivery SET state = 'failed', finished_at = 1, due_at = NULL WHERE ordinal = 4")
    assert isinstance(fetched(over_https(server), key_of(3)), Gone)
    assert isinstance(fetched(over_https(server), key_of(4)), Gone)


def test_a_manifest_whose_content_is_not_sealed_yet_gives_out_nothing(stage):
    _, desk, server = stage
    desk.sql("UPDATE manifest SET content_sealed_at = NULL")
    try:
        assert fetched(over_https(server), key_of(1)) is None
    finally:
        desk.sql("UPDATE manifest SET content_sealed_at = 1")


def test_the_certificate_is_checked_and_so_is_the_way(stage, tmp_path):
    _, _, server = stage
    stranger = make_tls(tmp_path / "other")
    with pytest.raises(ContentUnavailableError):
        fetched(HttpContents(server.url, [TOKEN], str(stranger.ca_file)), key_of(1))
    for url in ("http://content.example", "https://user@content.example", "ftp://x", ""):
        with pytest.raises(SpecError):
            HttpContents(url, [TOKEN])
    with pytest.raises(SpecError, match="DIGEST_CONTENT_TOKEN"):
        HttpContents("https://content.example", [])


FOUND = {
    "content": "found",
    "key": "a:b:c",
    "digest": "d",
    "tenant": "t",
    "recipient": "r@x.test",
    "document": "AA==",
}


@pytest.mark.parametrize(
    "wire",
    [
        answer(200, b"<html>"),
        answer(200, b"[]"),
        answer(200, json.dumps({**FOUND, "key": "another:b:c"}).encode()),
        answer(200, json.dumps({**FOUND, "document": "not base64!"}).encode()),
        answer(200, json.dumps({**FOUND, "recipient": None}).encode()),
        answer(302, b"", "Location: http://127.0.0.1:9/\r\n"),
        answer(404, b"<html>"),
        answer(410, b"{}"),
        answer(401, b'{"content": "refused"}'),
        answer(500, b"{}"),
        RESET,
    ],
)
def test_an_answer_that_is_not_the_content_paths_own_is_no_content(wire):
    async def run():
        async with raw_server([wire]) as server:
            contents = HttpContents(server.url, [TOKEN])
            try:
                await contents.fetch("a:b:c")
            finally:
                await contents.close()

    with pytest.raises(ContentUnavailableError) as refused:
        asyncio.run(run())
    assert "r@x.test" not in str(refused.value)


def test_the_path_keeps_no_log_of_whom_it_gave_out(stage):
    folder, _, server = stage
    fetched(over_https(server), key_of(1))
    said = (folder / "content.log").read_text()
    for word in ("customer-", "@example.test", TOKEN):
        assert word not in said


def test_a_period_crosses_three_hosts_and_is_sent_once(open_desk, tmp_path, tls):
    """Pipeline, content path, and a subscriber with a ledger of its own that has no way to the pipeline's."""
    desk = open_desk(5)
    with giving_content(tmp_path, tls, variables_of(desk, tmp_path, DIGEST_CONTENT_TOKEN=TOKEN)) as content:
        own = {
            "DIGEST_LEDGER_URL": "",
            "DIGEST_SUBSCRIBER_LEDGER_URL": f"sqlite:///{tmp_path / 'subscriber.db'}",
            "DIGEST_SUBSCRIBER_CONTENT_URL": content.url,
            "DIGEST_SUBSCRIBER_CONTENT_CA_FILE": str(tls.ca_file),
            "DIGEST_CONTENT_TOKEN": TOKEN,
        }
        with subscribing(tmp_path, tls, {**variables_of(desk, tmp_path), **own}) as server:
            assert desk.deliver(gateway=push_gateway(server)).accepted == 5
            assert server.push(body_of(desk, 1)).status == 200
            content.kill()
            assert server.push(body_of(desk, 1)).status == 200  # decided: no content is needed
            unavailable = server.push(body_of(desk, 1, key="tiny_digest:2025-W10:other"))
            assert (unavailable.status, unavailable.outcome) == (503, "retry")
    assert desk.counts() == {"sent": 5}
    assert_once_each(desk, range(1, 6))
    assert receipt_of(desk.ledger, 1) is None  # the pipeline's ledger holds no receipts
    assert SECRET not in (tmp_path / "subscriber.log").read_text()
