"""How many messages a call may carry: checked where the gateway is made, before anything is written."""

import pytest

from digest_pipeline.errors import SpecError
from digest_pipeline.installation import make_gateway
from digest_pipeline_tests.harness.ledgers import tiny_spec

SANDBOX = {"url": "http://127.0.0.1:1", "api_key": "k"}


def digest(folder, size, rate=None, **settings):
    return tiny_spec(
        folder,
        gateway={"kind": "sandbox", "settings": {**SANDBOX, **settings}},
        sending={"batch_size": size},
        rate=rate or {"per_second": 100, "burst": 1_000},
    )


@pytest.mark.parametrize("size", [1, 2, 500])
def test_what_the_gateway_takes_is_taken(tmp_path, size):
    assert make_gateway(digest(tmp_path, size)).capabilities.batch_size == 500


@pytest.mark.parametrize(
    ("size", "settings", "said"),
    [
        (501, {}, r"sending.batch_size \(501\): the sandbox gateway takes at most 500 messages in a call"),
        (
            2,
            {"batch_size": "1"},
            r"sending.batch_size \(2\): the sandbox gateway takes one message in a call",
        ),
        (
            2,
            {"batch_key": "none"},
            r"sending.batch_size \(2\): the sandbox gateway's keys do not cover a call",
        ),
    ],
)
def test_more_than_the_gateway_takes_is_refused_by_name(tmp_path, size, settings, said):
    with pytest.raises(SpecError, match=said):
        make_gateway(digest(tmp_path, size, **settings))


def test_a_call_that_the_rate_would_never_let_through_is_refused_with_what_to_change(tmp_path):
    slow = {"per_second": 100, "burst": 60}
    make_gateway(digest(tmp_path, 35, rate=slow))
    with pytest.raises(SpecError, match=r"raise rate.burst to 61 or lower sending.batch_size"):
        make_gateway(digest(tmp_path, 36, rate=slow))


def test_keys_that_are_switched_off_cover_nothing_and_forbid_nothing(tmp_path):
    made = make_gateway(digest(tmp_path, 5, idempotency="none", batch_key="none"))
    assert made.capabilities.key_lifetime is None
