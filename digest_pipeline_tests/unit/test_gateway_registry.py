import json
from datetime import timedelta

import pytest

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.gateways.registry import KINDS, create, describe

SETTINGS = {"url": "http://127.0.0.1:8025", "api_key": "k"}


def test_an_unknown_kind_names_the_nearest_one():
    with pytest.raises(SpecError, match="did you mean 'sandbox'"):
        create("sandbx", SETTINGS)


def test_an_unknown_setting_names_the_nearest_one():
    with pytest.raises(SpecError, match="did you mean 'time_out'"):
        create("sandbox", SETTINGS | {"timeout": "3s"})


@pytest.mark.parametrize("missing", ["url", "api_key"])
def test_a_missing_setting_is_named(missing):
    with pytest.raises(SpecError, match=missing):
        create("sandbox", {name: value for name, value in SETTINGS.items() if name != missing})


def test_capabilities_come_from_settings_and_from_overrides():
    text = create("sandbox", SETTINGS | {"idempotency": "none", "look_up": "false"}).capabilities
    assert (text.idempotency, text.key_lifetime, text.look_up) == (Idempotency.NONE, None, False)
    given = create("sandbox", SETTINGS, {"key_lifetime": timedelta(minutes=15)}).capabilities
    assert given.key_lifetime == timedelta(minutes=15)
    assert create(
        "sandbox", SETTINGS | {"visibility_delay": "5m"}
    ).capabilities.visibility_delay == timedelta(minutes=5)


@pytest.mark.parametrize(
    "wrong",
    [{"key_lifetime": "15"}, {"look_up": "maybe"}, {"idempotency": "sometimes"}, {"batch_size": "0"},
     {"time_out": "-1s"}, {"url": "http://user:S3cr3t@host"}, {"url": "ftp://host"}],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_a_spec_error_without_its_secret(wrong):
    with pytest.raises(SpecError) as caught:
        create("sandbox", SETTINGS | wrong)
    assert "S3cr3t" not in str(caught.value)


def test_an_unknown_capability_is_refused():
    with pytest.raises(SpecError, match="look_up"):
        create("sandbox", SETTINGS, {"lookup": True})


def test_contradicting_capabilities_are_a_spec_error():
    with pytest.raises(SpecError, match="key_lifetime"):
        create("sandbox", SETTINGS, {"idempotency": Idempotency.NONE, "key_lifetime": timedelta(1)})


def test_the_description_is_plain_data_about_every_kind():
    assert [kind["kind"] for kind in describe()] == list(KINDS)
    assert json.loads(json.dumps(describe())) == describe()
