"""A frozen period through each emulated provider: what its gateway says leads to one message for everyone."""

from dataclasses import replace

import pytest

from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline_tests.harness.delivering import key_of

LOST = [
    Fault.RESET_AFTER_ACCEPT,
    Fault.RESET_BEFORE_ACCEPT,
    Fault.BAD_GATEWAY_502_AFTER_ACCEPT,
    Fault.TRUNCATED_JSON_AFTER_ACCEPT,
    Fault.SERVER_ERROR_500_BEFORE_ACCEPT,
    Fault.THROTTLED_429,
]
CUSTOMERS = len(LOST) + 2
INVALID = CUSTOMERS


@pytest.mark.parametrize("stand", ["resend", "postmark", "mailjet"], indirect=True)
def test_everyone_is_written_to_once_although_answers_are_lost(open_desk, stand):
    """DUP-33, DUP-19."""
    desk = replace(open_desk(CUSTOMERS, sending={"in_run_wait_seconds": 0}), sandbox=stand.process)
    for number, fault in enumerate(LOST, start=1):
        desk.script(fault, number, retry_after=0.1)
    desk.script(Fault.INVALID_RECIPIENT_422, INVALID)
    for run in range(8):
        desk.deliver(stand.gateway(), run_id=f"run-{run}")
        if set(desk.counts()) == {"sent", "failed"}:
            break
        desk.pass_time(400)  # past every visibility delay, and far within the lifetime of keys
    assert desk.counts() == {"sent": CUSTOMERS - 1, "failed": 1}
    assert desk.row(INVALID).state == "failed"
    oracle = stand.process.oracle()
    assert list(oracle.duplicates()) == []
    assert set(oracle.accepted_keys()) == {key_of(number) for number in range(1, CUSTOMERS)}
    assert oracle.recipients_other_than_one() == 0
