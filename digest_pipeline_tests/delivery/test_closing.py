"""What waits after its window: held, until a person or the retention rule ends it; and sending switched off."""

import json

import pytest

from digest_pipeline.cleanup.retention import apply_retention
from digest_pipeline.errors import InputError, UnknownKeyError
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.ledger import reads
from digest_pipeline.operations.close import close_period
from digest_pipeline.operations.decisions import Order
from digest_pipeline.operations.replay import replay
from digest_pipeline_tests.harness.delivering import NEITHER, REPLAYS, assert_once_each, key_of
from digest_pipeline_tests.harness.ledgers import PERIOD, dump, plant

DAY = 86_400


def close(desk, *, apply=True, reason="nobody wants old news"):
    return close_period(desk.ledger, desk.digest, PERIOD, who="me", reason=reason, apply=apply)


def test_a_period_that_may_still_be_sent_is_not_closed(open_desk):
    desk = open_desk(2)
    with pytest.raises(InputError, match=r"may be sent until .* digest pause --digest tiny_digest"):
        close(desk)
    assert desk.counts() == {"pending": 2}


def test_closing_ends_what_waits_and_leaves_alone_what_is_unknown_or_sent(open_desk):
    desk = open_desk(4, can=NEITHER)
    desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    desk.sql("UPDATE delivery SET due_at = 4000000000000000 WHERE ordinal > 2")
    desk.deliver()
    plant(desk.ledger, desk.manifest_ids[0], 3, "retry")
    desk.close_window()
    assert (close(desk, apply=False).ended, desk.row(4).state) == (2, "pending")
    assert close(desk).ended == 2
    assert [row.state for row in desk.rows()] == ["unknown", "sent", "dead", "dead"]
    assert {desk.row(n).failure_class for n in (3, 4)} == {"window"}
    assert close(desk).ended == 0
    (action,) = dump(desk.ledger, "operator_action")
    assert (action["kind"], action["who"], json.loads(action["effect"])) == ("close", "me", {"ended": 2})


def test_a_closed_letter_can_still_be_replayed_under_its_own_key(open_desk):
    desk = open_desk(2)
    desk.close_window()
    assert close(desk).ended == 2
    order = Order(desk.digest, PERIOD, (key_of(1),), "me", "she asked for it")
    assert replay(desk.ledger, order, apply=True).changed == [key_of(1)]
    desk.deliver()
    assert [row.state for row in desk.rows()] == ["sent", "dead"]
    assert_once_each(desk, range(1, 2))


def test_closing_needs_a_reason_and_a_period_that_exists(open_desk):
    desk = open_desk(1)
    with pytest.raises(InputError, match="reason"):
        close(desk, reason=" ")
    other = desk.digest.model_copy(update={"name": "other_digest"})
    with pytest.raises(UnknownKeyError, match="there is nothing to close"):
        close_period(desk.ledger, other, PERIOD, who="me", reason="x", apply=True)


def test_the_retention_rule_ends_what_was_never_tried_and_says_so(open_desk):
    """Never silently: the audit trail has the rule's doing, the rows are dead letters of class window."""
    desk = open_desk(3, can=NEITHER)
    desk.script(Fault.RESET_AFTER_ACCEPT, 1)
    desk.sql("UPDATE delivery SET due_at = 4000000000000000 WHERE ordinal > 1")
    desk.deliver()
    desk.close_window()
    # Frozen just now for a window that is long over, as a backfill does: held, not ended.
    assert apply_retention(desk.ledger, desk.digest, desk.manifest_ids) == {}
    desk.pass_time((desk.digest.retention.pending_days + 1) * DAY)
    assert apply_retention(desk.ledger, desk.digest, desk.manifest_ids) == {"written_off": 1, "closed": 2}
    assert apply_retention(desk.ledger, desk.digest, desk.manifest_ids) == {}
    assert desk.counts() == {"written_off": 1, "dead": 2}
    (action,) = dump(desk.ledger, "operator_action")
    assert (action["kind"], action["who"]) == ("retention", "retention rule")
    assert json.loads(action["effect"]) == {"closed": 2, "written_off": 1}


def test_what_is_within_its_retention_stays_held(open_desk):
    desk = open_desk(1)
    desk.sql("UPDATE manifest SET window_opens_at = 0, window_closes_at = selected_at, late_until = NULL")
    assert apply_retention(desk.ledger, desk.digest, desk.manifest_ids) == {}
    assert desk.row(1).state == "pending"


def test_with_sending_disabled_nothing_is_claimed_and_everything_is_held_for_that(open_desk):
    desk = open_desk(3)
    desk.change(enabled=False)
    done = desk.deliver()
    assert (done.accepted, desk.counts()) == (0, {"pending": 3})
    assert desk.attempts() == []
    with desk.ledger.read() as conn:
        summary = reads.summarise(conn, desk.manifest_ids, sends=desk.digest.sending.enabled)
    assert summary.held == {"sending_disabled": 3}
    assert list(desk.sandbox.control.arrivals()) == []
    desk.change(enabled=True)
    desk.deliver(run_id="run-2")
    assert_once_each(desk, range(1, 4))


@pytest.mark.parametrize("can", [REPLAYS, NEITHER])
def test_with_sending_disabled_an_unknown_is_not_sent_again(open_desk, can):
    desk = open_desk(
        1, can=can, sending={"in_run_wait_seconds": 0}, retry={"base_seconds": 30, "cap_seconds": 30}
    )
    desk.script(Fault.RESET_BEFORE_ACCEPT, 1)
    desk.deliver()
    assert desk.counts() == {"unknown": 1}
    desk.pass_time(60)
    desk.change(enabled=False)
    desk.deliver(run_id="run-2")
    assert desk.counts() == {"unknown": 1}
    assert len(desk.attempts()) == 1
