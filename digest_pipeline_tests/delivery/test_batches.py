"""Several messages in one call: each is settled for itself, and a call under one key goes again whole or not at all."""

from contextlib import ExitStack

import pytest

from digest_pipeline.addresses import address_hash
from digest_pipeline.gateways import registry
from digest_pipeline.lab.providers.emulation import SPOILING_DOMAIN
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.records import Verdict
from digest_pipeline_tests.harness.batching import CREDENTIALS, ONE_PASS, answering, batch_desk, provider
from digest_pipeline_tests.harness.delivering import NEITHER, assert_once_each, key_of

TAKEN, NOT_TAKEN = Fault.RESET_AFTER_ACCEPT, Fault.RESET_BEFORE_ACCEPT
KINDS = ("resend", "postmark", "mailjet")


@pytest.fixture(scope="module")
def providers(tmp_path_factory):
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("providers")
        yield {kind: stack.enter_context(provider(kind, folder)) for kind in KINDS}


@pytest.fixture
def open_batches(tmp_path, ledger_url, sandbox, providers):
    """Freeze a small period that goes out in batches, on each engine in turn."""
    with ExitStack() as stack:

        def opened(kind="sandbox", customers=10, **changes):
            process = providers.get(kind, sandbox)
            process.control.reset()
            return stack.enter_context(batch_desk(tmp_path, ledger_url, process, kind, customers, **changes))

        yield opened


def keys(*numbers):
    return [key_of(number) for number in numbers]


@pytest.mark.parametrize("kind", ["sandbox", *KINDS])
def test_a_call_carries_several_messages_and_each_is_settled_for_itself(open_batches, kind):
    """SEC-04."""
    desk = open_batches(kind, 12)
    desk.deliver()
    assert_once_each(desk, range(1, 13))
    assert sorted(desk.sizes()) == [2, 5, 5]
    assert desk.counts() == {"sent": 12}
    assert len({row.message_id for row in desk.rows()}) == 12


def test_without_a_batch_size_every_message_goes_alone(open_batches):
    desk = open_batches("resend", 4, batch_size=1)
    desk.deliver()
    assert desk.sizes() == [1, 1, 1, 1]
    assert desk.batches() == []
    assert {row.batch_id for row in desk.rows()} == {None}


def test_one_refused_message_of_nineteen_is_failed_at_once_and_the_others_are_sent_once(open_batches):
    """DUP-05: three runs."""
    desk = open_batches("postmark", 19, batch_size=19)
    desk.script(Fault.INVALID_RECIPIENT_422, 19, attempts=99)
    for run in range(3):
        desk.deliver(run_id=f"run-{run}")
    assert desk.sizes() == [19]
    assert desk.counts() == {"sent": 18, "failed": 1}
    assert (desk.row(19).state, desk.row(19).failure_class) == ("failed", "recipient")
    assert_once_each(desk, range(1, 19))


def test_a_group_of_which_one_got_no_verdict_repeats_only_that_one(open_batches):
    """DUP-03."""
    desk = open_batches(customers=5, can={"look_up": "false"})
    desk.sandbox.control.script(Rule(Fault.SHORT_BATCH_ANSWER, next=1))
    desk.deliver()
    assert desk.times_offered() == {key_of(n): 1 + (n == 5) for n in range(1, 6)}
    assert [a.outcome for a in desk.attempts(5)] == ["ambiguous", "accepted"]
    assert_once_each(desk, range(1, 6))


@pytest.mark.parametrize(
    ("fault", "unknown"),
    [
        (Fault.TRUNCATED_JSON_AFTER_ACCEPT, {1, 2, 3}),
        (Fault.SHORT_BATCH_ANSWER, {3}),
        (Fault.HTML_200_AFTER_ACCEPT, {1, 2, 3}),
        (Fault.SHUFFLED_BATCH_ANSWER, set()),
    ],
)
def test_a_200_that_cannot_be_read_is_unknown_for_whom_it_says_nothing_of(open_batches, fault, unknown):
    """DUP-19 (a) to (d)."""
    desk = open_batches(customers=3, can=NEITHER)
    desk.sandbox.control.script(Rule(fault, next=1))
    for _ in range(2):
        desk.deliver()
    accepted = {one.operation_key: one.message_id for one in desk.sandbox.oracle().acceptances()}
    for row in desk.rows():
        expected = ("unknown", None) if row.ordinal in unknown else ("sent", accepted[key_of(row.ordinal)])
        assert (row.state, row.message_id) == expected
    assert_once_each(desk, range(1, 4))


def test_an_answer_of_200_has_a_verdict_for_each_message(open_batches):
    """CLS-06: one taken, one on the provider's list, one invalid, one without a readable verdict."""
    items = [
        {"ErrorCode": 0, "MessageID": "m-1"},
        {"ErrorCode": 406, "Message": "inactive"},
        {"ErrorCode": 300, "Message": "Invalid 'To' address."},
        {"ErrorCode": 0},
    ]
    desk = open_batches("postmark", 4, **ONE_PASS)
    with answering(200, items) as url:
        desk.deliver(desk.gateway(url=url))
    found = [(row.state, row.failure_class, row.message_id) for row in desk.rows()]
    assert found == [
        ("sent", None, "m-1"),
        ("failed", "recipient", None),
        ("failed", "recipient", None),
        ("unknown", "ambiguous", None),
    ]
    suppressed = [row.address_hash for row in desk.sql("SELECT address_hash FROM suppression")]
    assert suppressed == [address_hash("reader-2@example.test")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_call_is_halved_until_it_is_one_messages_fault(open_batches, kind):
    desk = open_batches(kind, 8, batch_size=8)
    desk.address(6, f"reader-6{SPOILING_DOMAIN}")
    desk.deliver()
    assert desk.row(6).state == "failed"
    assert desk.counts() == {"sent": 7, "failed": 1}
    assert sorted(desk.sandbox.oracle().accepted_keys()) == keys(1, 2, 3, 4, 5, 7, 8)
    assert list(desk.sandbox.oracle().duplicates()) == []
    assert {a.outcome for n in range(1, 9) for a in desk.attempts(n)} == {"accepted", "refused"}
    assert all(len(desk.attempts(n)) == 1 for n in range(1, 9))
    if kind == "resend":  # 8, then 4 and 4, 2 and 2, 1 and 1: each under a key of its own
        assert sorted(batch.size for batch in desk.batches()) == [1, 1, 2, 2, 4, 4, 8]


@pytest.mark.parametrize("fault", [TAKEN, NOT_TAKEN])
def test_a_call_under_one_key_goes_again_whole_with_the_same_bytes_and_order(open_batches, fault):
    desk = open_batches("resend", 10)
    desk.script(fault, 2)
    desk.deliver()
    first = next(call for call in desk.calls() if key_of(2) in call)
    again = [call for call in desk.calls() if key_of(2) in call]
    assert again == [first, first]
    assert_once_each(desk, range(1, 11))
    assert desk.counts() == {"sent": 10}
    assert len(desk.batches()) == 2
    by_attempt = [{a.batch_id for a in desk.attempts(n)} for n in (1, 2, 3, 4, 5)]
    assert by_attempt == [{desk.row(2).batch_id}] * 5
    expected = {Verdict.ACCEPTED: 10, Verdict.REPLAYED: 5} if fault is TAKEN else {Verdict.ACCEPTED: 10}
    told = desk.sandbox.oracle().verdicts()
    assert {verdict: told.get(verdict) for verdict in expected} == expected


def test_a_batch_is_repeated_whole_although_later_ones_are_smaller(open_batches):
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.deliver()
    assert desk.counts() == {"unknown": 5}
    desk.change(batch_size=1)
    desk.pass_time(31)
    desk.deliver(run_id="run-2")
    assert desk.counts() == {"sent": 5}
    assert desk.sizes() == [5, 5]
    assert_once_each(desk, range(1, 6))


LEAVES = {
    "is suppressed": "INSERT INTO suppression (tenant, address_hash, reason, since_at) "
    "SELECT 'default', address_hash, 'opted_out', 1 FROM manifest_entry WHERE ordinal = 3",
    "is erased": "UPDATE manifest_entry SET recipient = NULL, name = NULL WHERE ordinal = 3",
    "has lost its content": "DELETE FROM content WHERE ordinal = 3",
    "is held for a person": "UPDATE delivery SET due_at = NULL, hold_reason = 'integrity' WHERE ordinal = 3",
    "turned out to be sent": "UPDATE delivery SET state = 'sent', ambiguous_at = NULL, proof = 'accepted', "
    "due_at = NULL, finished_at = 1 WHERE ordinal = 3",
}


@pytest.mark.parametrize("leaves", LEAVES.values(), ids=LEAVES)
def test_a_batch_of_which_one_may_not_go_again_is_held_and_no_part_of_it_is_sent(open_batches, leaves):
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.sql(leaves)
    for run in ("run-2", "run-3"):
        desk.pass_time(31)
        desk.deliver(run_id=run)
    others = [row for row in desk.rows() if row.ordinal != 3]
    assert {(row.state, row.hold_reason, row.due_at) for row in others} == {("unknown", "no_evidence", None)}
    assert desk.sizes() == [5]
    assert desk.sandbox.oracle().accepted_count() == 0


def test_past_the_keys_lifetime_a_batch_waits_for_a_person(open_batches):
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.pass_time(25 * 3600)
    desk.deliver(run_id="run-2")
    assert {(row.state, row.hold_reason) for row in desk.rows()} == {("unknown", "key_expired")}
    assert desk.sizes() == [5]


def test_with_another_account_a_batch_is_not_repeated(open_batches):
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.pass_time(31)
    desk.deliver(desk.gateway(api_key="re_Another"), run_id="run-2")
    assert {(row.state, row.hold_reason) for row in desk.rows()} == {("unknown", "other_account")}
    desk.deliver(run_id="run-3")
    assert desk.counts() == {"sent": 5}
    assert_once_each(desk, range(1, 6))


def test_a_batch_waits_while_its_gateway_is_paused(open_batches):
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.script(NOT_TAKEN, 2)
    desk.deliver()
    desk.pass_time(31)
    desk.sql("INSERT INTO pause (kind, name, since_at) VALUES ('gateway', 'resend', 1)")
    desk.deliver(run_id="run-2")
    assert desk.sizes() == [5]
    desk.sql("DELETE FROM pause")
    desk.deliver(run_id="run-3")
    assert desk.counts() == {"sent": 5}


def test_what_a_lost_copy_may_have_sent_in_a_batch_is_never_sent_alone(open_batches):
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.sql("UPDATE manifest SET in_doubt_from_at = selected_at, doubted_at = NULL")
    for run in ("run-1", "run-2"):
        desk.deliver(run_id=run)
        desk.pass_time(31)
    assert {(row.state, row.hold_reason) for row in desk.rows()} == {("unknown", "no_evidence")}
    assert desk.calls() == []


def test_bytes_that_changed_stop_a_repeat_and_raise_the_alarm_for_their_own_message(open_batches):
    """CLS-11, for a call."""
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.deliver()
    desk.sql("UPDATE delivery SET payload_hash = :wrong WHERE ordinal = 3", wrong="0" * 64)
    for run in ("run-2", "run-3"):
        desk.pass_time(31)
        desk.deliver(run_id=run)
    assert desk.row(3).hold_reason == "integrity"
    assert {desk.row(n).hold_reason for n in (1, 2, 4, 5)} == {"no_evidence"}
    assert desk.sizes() == [5]


@pytest.mark.parametrize("kind", ["sandbox", "resend"])
def test_a_message_that_cannot_be_sent_is_judged_alone_and_breaks_no_batch(open_batches, kind):
    desk = open_batches(kind, 5)
    desk.sql("UPDATE delivery SET payload_hash = :wrong WHERE ordinal = 2", wrong="0" * 64)
    desk.address(4, "a@example.test, b@example.test")
    desk.script(TAKEN, 1)
    desk.deliver()
    assert [row.state for row in desk.rows()] == ["sent", "failed", "sent", "failed", "sent"]
    assert desk.sizes() == [3, 3] if kind == "resend" else desk.times_offered().keys() == set(keys(1, 3, 5))
    assert list(desk.sandbox.oracle().accepted_keys()) == keys(1, 3, 5)
    assert list(desk.sandbox.oracle().duplicates()) == []


def test_an_unreachable_provider_counts_a_call_once_however_many_messages_it_has(open_batches):
    desk = open_batches(
        "postmark",
        5,
        sending={"in_run_wait_seconds": 0},
        retry={"base_seconds": 30, "cap_seconds": 30, "connect_failures_to_halt": 2},
    )
    desk.sandbox.stop()
    try:
        first = desk.deliver()
        desk.pass_time(31)
        second = desk.deliver(run_id="run-2")
    finally:
        desk.sandbox.start()
    assert (first.halted, second.halted) == (None, None)
    assert {row.state for row in desk.rows()} == {"retry"}
    assert [a.failure_class for a in desk.attempts(1)] == ["connect", "connect"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_account_halts_and_charges_nobody(open_batches, kind):
    desk = open_batches(kind, 5)
    desk.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1))
    assert desk.deliver().halted is not None
    assert {(row.state, row.attempts) for row in desk.rows()} == {("pending", 0)}
    desk.deliver(run_id="run-2")
    assert desk.counts() == {"sent": 5}
    assert_once_each(desk, range(1, 6))


def test_a_halted_account_is_tried_with_a_batch_that_is_in_doubt(open_batches):
    desk = open_batches("resend", 5, **ONE_PASS)
    desk.script(TAKEN, 2)
    desk.deliver()
    desk.pass_time(31)
    desk.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1))
    assert desk.deliver(run_id="run-2").halted is not None
    desk.deliver(run_id="run-3")
    assert desk.counts() == {"sent": 5}
    assert_once_each(desk, range(1, 6))


def test_a_provider_sees_no_more_messages_in_a_window_than_the_gate_promises(open_batches):
    desk = open_batches(customers=80, batch_size=10, rate={"per_second": 60, "burst": 25})
    desk.deliver()
    assert_once_each(desk, range(1, 81))
    for window in (0.1, 0.5, 1.0):
        assert desk.sandbox.oracle().max_arrivals(window) <= 60 * window + 25
    assert max(desk.sizes()) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_week_in_batches_with_every_fault_is_sent_once_each(open_batches, kind):
    desk = open_batches(kind, 60, batch_size=7, rate={"per_second": 500, "burst": 200})
    for place, fault in enumerate(
        (TAKEN, NOT_TAKEN, Fault.UNAVAILABLE_503, Fault.THROTTLED_429, Fault.BAD_GATEWAY_502_AFTER_ACCEPT,
         Fault.TRUNCATED_JSON_AFTER_ACCEPT, Fault.CUT_BODY_AFTER_ACCEPT, Fault.SERVER_ERROR_500_AFTER_ACCEPT)
    ):  # fmt: skip
        desk.script(fault, 3 + 7 * place, retry_after=0.2)
    # Nobody is refused here: a call that is in doubt, and refused when it is repeated, stays in doubt.
    for run in range(8):
        desk.deliver(run_id=f"run-{run}")
        desk.pass_time(40)
    assert desk.counts() == {"sent": 60}
    assert_once_each(desk, range(1, 61))


def test_two_senders_at_once_repeat_a_batch_once(open_batches):
    desk = open_batches("resend", 40, sending={"lanes": 2})
    desk.script(TAKEN, 2, 12, 22, 32)
    runs = [desk.deliver_meanwhile(run_id=f"run-{n}", sender=f"s{n}") for n in range(2)]
    for run in runs:
        run.result()
    desk.deliver(run_id="run-3")
    assert desk.counts() == {"sent": 40}
    assert_once_each(desk, range(1, 41))


def test_every_kind_with_batches_has_a_credential_here():
    takes_batches = {name for name, kind in registry.KINDS.items() if kind.capabilities.batch_size > 1}
    assert takes_batches <= {"sandbox", *CREDENTIALS}
