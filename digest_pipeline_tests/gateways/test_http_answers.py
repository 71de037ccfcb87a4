"""What answers mean, one by one, from a server that says what it is told to."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from digest_pipeline.gateways.base import BatchRefused
from digest_pipeline.gateways.sandbox import SandboxGateway
from digest_pipeline.outcomes import (
    AccountRefused,
    Ambiguous,
    NotSent,
    Refused,
    Throttled,
)
from digest_pipeline_tests.harness.raw_http import PAGE, SECRET, answer, named, outcome_of, raw_server
from digest_pipeline_tests.harness.sandbox import envelopes

STATUSES = [
    (200, b"{}", Ambiguous),
    (200, b'{"id": 7}', Ambiguous),
    (200, b'{"id": ""}', Ambiguous),
    (200, b"", Ambiguous),
    (200, b"[1]", Ambiguous),
    (201, b'{"id": "x"}', Ambiguous),
    (204, b"", Ambiguous),
    (301, PAGE, AccountRefused),
    (307, PAGE, AccountRefused),
    (400, named("validation_error"), Refused),
    (400, PAGE, AccountRefused),
    (401, b"", AccountRefused),
    (402, b"{}", AccountRefused),
    (403, PAGE, AccountRefused),
    (404, PAGE, AccountRefused),
    (405, b"", AccountRefused),
    (408, b"", Ambiguous),
    (409, named("some_conflict"), Ambiguous),
    (413, PAGE, Refused),
    (422, named("invalid_recipient"), Refused),
    (422, named("domain_not_verified"), AccountRefused),
    (422, PAGE, AccountRefused),
    (429, PAGE, Throttled),
    (429, named("quota_exceeded"), AccountRefused),
    (499, b"", AccountRefused),
    (500, named("internal_server_error"), Ambiguous),
    (502, PAGE, Ambiguous),
    (503, PAGE, Ambiguous),
    (503, named("service_unavailable"), NotSent),
    (504, PAGE, Ambiguous),
    (599, b"", Ambiguous),
    (999, b"nonsense", Ambiguous),
]


@pytest.mark.parametrize(("status", "body", "kind"), STATUSES)
def test_each_status_means_what_the_table_says(status, body, kind):
    """CLS-03."""
    (outcome,), _ = outcome_of(answer(status, b"" if status == 204 else body))
    assert type(outcome) is kind


NOW = datetime(2026, 10, 14, 8, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Retry-After: 17\r\n", 17.0),
        ("Retry-After: Wed, 14 Oct 2026 08:01:30 GMT\r\n", 90.0),
        ("Retry-After: Wed, 14 Oct 2026 07:00:00 GMT\r\n", 0.0),
        ("Retry-After: Wed, 14 Oct 2026 08:01:30 -0000\r\n", 90.0),
        ("Retry-After: soon\r\n", None),
        ("", None),
        ("Retry-After: Wed, 14 Oct 2026 09:01:30 GMT\r\nDate: Wed, 14 Oct 2026 09:00:00 GMT\r\n", 90.0),
        ("Retry-After: 5\r\nDate: never\r\n", 5.0),
    ],
)
def test_retry_after_is_read_by_the_providers_clock(header, expected):
    """CLS-08."""
    (outcome,), _ = outcome_of(answer(429, b"{}", header), now=NOW)
    assert outcome.retry_after == expected


ITEMS: list[tuple[dict[str, Any], str]] = [
    ({"status": 200, "id": "a"}, "Accepted"),
    ({"status": 406, "error": {"name": "recipient_suppressed"}}, "AccountRefused"),
    ({"status": 422, "error": {"name": "invalid_recipient"}}, "Refused"),
    ({"status": 200}, "Ambiguous"),
    ({"id": "x"}, "Ambiguous"),
    ({"status": "200", "id": "x"}, "Ambiguous"),
]


def test_each_item_of_a_batch_has_its_own_verdict():
    """CLS-06."""
    sent = envelopes(len(ITEMS) + 1)
    data = [{"key": e.operation_key, **item} for e, (item, _) in zip(sent, ITEMS, strict=False)]
    body = json.dumps({"data": [*data, None, 7, {"key": 3}]}).encode()

    async def run():
        async with raw_server([answer(200, body)]) as server:
            async with SandboxGateway(server.url, SECRET) as gateway:
                return await gateway.send_batch(sent)

    kinds = [type(outcome).__name__ for outcome in asyncio.run(run())]
    assert kinds == [kind for _, kind in ITEMS] + ["Ambiguous"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_of_a_whole_batch_is_no_verdict_about_any_message(status):
    async def run():
        async with raw_server([answer(status, named("validation_error"))]) as server:
            async with SandboxGateway(server.url, SECRET) as gateway:
                return await gateway.send_batch(envelopes(3))

    assert isinstance(asyncio.run(run()), BatchRefused)
