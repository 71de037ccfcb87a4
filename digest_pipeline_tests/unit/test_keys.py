import inspect

import pytest

from digest_pipeline.errors import InputError
from digest_pipeline.keys import KEY_VERSION, MAX_KEY_LENGTH, operation_key


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (
            ("customer_digest", "2026-W42", "default", "customer-1842"),
            "customer_digest:2026-W42:customer-1842",
        ),
        (
            ("portfolio_report", "2026-10-14", "acme", "customer-7"),
            "portfolio_report:2026-10-14:acme/customer-7",
        ),
        (("d", "2026-W42", "default", "a/b:c%d e"), "d:2026-W42:a%2Fb%3Ac%25d%20e"),
        (("d", "2026-W42", "t/1", "ü#"), "d:2026-W42:t%2F1/%C3%BC%23"),
        (("d", "2026-W42", "default", "A-Z_a.z~0"), "d:2026-W42:A-Z_a.z~0"),
        (
            ("d", "2026-W42", "default", "c" * 300),
            "#8b93d672d63a886de1884ac65fe8b923674e097fb43a735ffc55ccccc51ad6b4",
        ),
    ],
)
def test_keys_keep_their_form_because_ledgers_hold_them(parts, key):
    assert (KEY_VERSION, operation_key(*parts)) == (1, key)


def test_nothing_but_digest_period_tenant_and_customer_feeds_a_key():
    """DUP-01."""
    assert list(inspect.signature(operation_key).parameters) == ["digest", "period", "tenant", "customer"]


def test_a_key_is_hashed_only_beyond_the_limit():
    prefix = len("d:2026-W42:")
    assert len(operation_key("d", "2026-W42", "default", "c" * (MAX_KEY_LENGTH - prefix))) == MAX_KEY_LENGTH
    assert operation_key("d", "2026-W42", "default", "c" * (MAX_KEY_LENGTH - prefix + 1)).startswith("#")


@pytest.mark.parametrize("empty", range(4))
def test_an_empty_part_is_refused_by_name(empty):
    parts = ["d", "2026-W42", "t", "c"]
    parts[empty] = ""
    with pytest.raises(InputError, match=("digest", "period", "tenant", "customer")[empty]):
        operation_key(*parts)


def test_a_customer_that_is_not_unicode_is_refused_without_being_quoted():
    with pytest.raises(InputError) as caught:
        operation_key("d", "2026-W42", "default", "secret\ud83d")
    assert "secret" not in str(caught.value)
