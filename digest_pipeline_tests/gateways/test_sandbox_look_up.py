from datetime import UTC, datetime

from digest_pipeline.gateways.http import Answer
from digest_pipeline.gateways.sandbox_answers import look_up_result
from digest_pipeline.outcomes import Found, LookUpFailed
from digest_pipeline_tests.harness.sandbox import envelope, gateway_to, keyless, look_up, send

KEY = envelope().operation_key


def test_a_look_up_counts_the_messages_accepted_under_a_key(sandbox):
    first, *_ = send(keyless(sandbox), envelope(), envelope(), envelope("2"))
    assert look_up(keyless(sandbox), KEY) == Found(first.message_id, copies=2)
    assert look_up(keyless(sandbox), envelope("2").operation_key).copies == 1


def test_a_replayed_answer_is_no_second_message(sandbox):
    send(gateway_to(sandbox), envelope(), envelope())
    assert look_up(gateway_to(sandbox), KEY).copies == 1


def test_entries_about_other_keys_are_not_counted():
    ours, other = f'{{"id": "m1", "operation_key": "{KEY}"}}', '{"id": "m2", "operation_key": "another"}'
    now = datetime.now(UTC)
    assert look_up_result(Answer(200, {}, f'{{"data": [{other}, {ours}]}}'.encode()), KEY, now) == Found("m1")
    assert isinstance(
        look_up_result(Answer(200, {}, f'{{"data": [{other}]}}'.encode()), KEY, now), LookUpFailed
    )
