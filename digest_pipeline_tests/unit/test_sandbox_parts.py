import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.gateways.sandbox import serialise
from digest_pipeline.lab.sandbox import command, messages
from digest_pipeline.lab.sandbox.faults import HARSH_FAULTS, Fault, Rule, harsh, profile
from digest_pipeline.lab.sandbox.limiter import Limiter
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline_tests.harness.sandbox import envelope

TEXT = st.text(max_size=30) | st.sampled_from(['"', '",', '\\"', "\\", '","to":[', '"}', '\\",', "\\\\"])
MESSAGE = st.fixed_dictionaries(
    {
        "from": TEXT,
        "to": st.lists(st.fixed_dictionaries({"email": TEXT, "name": TEXT}), max_size=3),
        "subject": TEXT,
        "metadata": st.fixed_dictionaries({"operation_key": TEXT}),
    },
    optional={"html": TEXT, "text": TEXT, "headers": st.lists(TEXT), "other": st.none() | st.integers()},
)


@given(MESSAGE, st.booleans(), st.booleans(), st.booleans())
def test_reading_only_the_outline_gives_what_a_full_parse_gives(message, compact, ascii_only, ordered):
    separators = (",", ":") if compact else None
    body = json.dumps(message, ensure_ascii=ascii_only, separators=separators, sort_keys=ordered)
    data = body.encode("utf-8", "surrogatepass")
    found = messages._outline(data)
    if found is not None:
        assert found["to"] == message["to"]
        assert found["metadata"] == message["metadata"]
        assert bool(found["from"]) == bool(message["from"])


def test_the_gateways_own_bodies_take_the_short_way():
    assert messages._outline(serialise(envelope(text='say "hi",\nthen \\ "go"'))) is not None


@given(st.binary(max_size=200))
def test_no_body_raises(data):
    assert messages.read_message(data, "k").key == "k"


def test_a_share_hits_the_same_keys_every_time_and_about_as_many_as_asked():
    def hit(seed):
        rule = Rule(Fault.SLOW, share=0.1, seed=seed)
        return {n for n in range(2000) if rule.wants(f"k{n}", 1, 0)}

    assert hit(1) == hit(1) != hit(2)
    assert 140 < len(hit(1)) < 260


def test_a_rule_lets_a_key_pass_after_its_first_requests():
    rule = Rule(Fault.SLOW, keys=["k"], attempts=2)
    assert [rule.wants("k", attempt, 0) for attempt in (1, 2, 3)] == [True, True, False]


def test_a_rule_has_exactly_one_selector():
    with pytest.raises(ValueError, match="exactly one"):
        Rule(Fault.SLOW)
    with pytest.raises(ValueError, match="exactly one"):
        Rule(Fault.SLOW, next=1, share=0.5)


def test_a_rule_survives_json():
    for rule in (*harsh(3), Rule(Fault.SLOW, keys=["a", "b"], route="look_up")):
        assert Rule.from_json(json.loads(json.dumps(rule.to_json()))) == rule


def test_the_harsh_plan_names_every_fault_by_construction():
    certain = {rule.fault for rule in harsh(0) if rule.share is None}
    assert certain == set(HARSH_FAULTS)
    with pytest.raises(ValueError, match="no fault profile"):
        profile("mild", 0)


def test_every_fault_says_what_it_is():
    assert len(HARSH_FAULTS) == len(Fault) - 3


def test_the_limiter_admits_rate_times_window_plus_burst():
    limiter = Limiter(10, 5)
    admitted = sum(limiter.refused_for(1, 100 + n / 1000) is None for n in range(2000))
    assert admitted == 5 + 19  # 1.999 seconds at 10 a second


def test_the_limiter_says_how_long_to_wait_and_lets_a_large_batch_owe():
    limiter = Limiter(10, 5)
    assert limiter.refused_for(50, 100) is None
    assert limiter.refused_for(1, 100) == pytest.approx(4.6)


def test_the_commands_options_round_trip_through_the_process(monkeypatch, tmp_path):
    settings = SandboxSettings(
        port=0,
        latency_ms=20,
        idempotency=Idempotency.REFUSES,
        look_up=False,
        rate=5,
        burst=9,
        profile="harsh",
        seed=4,
    )
    seen = []
    monkeypatch.setattr(command, "serve", lambda *given: seen.append(given))
    result = CliRunner().invoke(
        command.serve_command, ["--store", str(tmp_path / "s.db"), *command.arguments(settings)]
    )
    assert result.exit_code == 0, result.output
    assert seen[0][:2] == (settings, tmp_path / "s.db")
