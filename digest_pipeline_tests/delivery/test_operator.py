"""What a person may do with dead letters and unknowns, and what is refused by name."""

import json
import threading

import pytest

from digest_pipeline.errors import InputError, UnknownKeyError
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.operations.decisions import Order
from digest_pipeline.operations.erase import erase_customer
from digest_pipeline.operations.late import allow_late
from digest_pipeline.operations.pause import Scope, pause, require_known, resume
from digest_pipeline.operations.replay import approve, replay
from digest_pipeline.operations.resolve import Verdict, resolve
from digest_pipeline_tests.harness.delivering import LOOK_UP, NEITHER, REPLAYS, assert_once_each, key_of
from digest_pipeline_tests.harness.ledgers import LABEL

REFUSED, TAKEN = Fault.INVALID_RECIPIENT_422, Fault.RESET_AFTER_ACCEPT


def order(desk, *numbers, who="ann", reason="the provider's outage is over"):
    return Order(
        desk.digest, desk.digest.period(LABEL), tuple(key_of(number) for number in numbers), who, reason
    )


def actions(desk):
    return desk.sql("SELECT * FROM operator_action ORDER BY id")


def test_a_replayed_dead_letter_goes_out_once_under_its_own_key(open_desk):
    desk = open_desk(4)
    desk.script(REFUSED, 2)
    desk.deliver()
    assert desk.counts() == {"sent": 3, "failed": 1}
    decision = replay(desk.ledger, order(desk, 2), apply=True)
    assert (decision.changed, decision.refused) == ([key_of(2)], {})
    desk.deliver(run_id="run-2")
    desk.deliver(run_id="run-3")  # redelivered: a no-op
    assert desk.counts() == {"sent": 4}
    assert_once_each(desk, range(1, 5))
    (action,) = actions(desk)
    assert (action.kind, action.who, json.loads(action.keys)) == ("replay", "ann", [key_of(2)])


def test_a_replay_is_a_dry_run_unless_it_is_applied(open_desk):
    desk = open_desk(3)
    desk.script(REFUSED, 2)
    desk.deliver()
    decision = replay(desk.ledger, order(desk, 2), apply=False)
    assert (decision.applied, decision.changed) == (False, [key_of(2)])
    assert desk.row(2).state == "failed"
    assert actions(desk) == []


def test_what_was_or_may_have_been_sent_is_refused_by_name_and_stops_nobody_else(open_desk):
    """DUP-28."""
    desk = open_desk(5, can=NEITHER)
    desk.script(REFUSED, 2)
    desk.script(TAKEN, 3)
    desk.deliver()
    keys = (*order(desk, 1, 2, 3).keys, "tiny_digest:2025-W10:nobody")
    decision = replay(
        desk.ledger, Order(desk.digest, desk.digest.period(LABEL), keys, "ann", "why"), apply=True
    )
    assert decision.changed == [key_of(2)]
    assert decision.refused == {
        key_of(1): "an attempt was accepted: a replay could be a second mail",
        key_of(3): "it is unknown",
        "tiny_digest:2025-W10:nobody": "not a delivery of this period",
    }
    again = replay(desk.ledger, order(desk, 2), apply=True)
    assert again.refused == {key_of(2): "it is being replayed already"}


def test_an_address_among_the_keys_is_refused_without_being_repeated(open_desk):
    desk = open_desk(1)
    keys = ("reader-1@example.test", "a key", key_of(1))
    decision = replay(
        desk.ledger, Order(desk.digest, desk.digest.period(LABEL), keys, "ann", "why"), apply=False
    )
    assert decision.refused == {
        "number 1 of the keys": "not an operation key",
        "number 2 of the keys": "not an operation key",
        key_of(1): "it waits to be sent already",
    }


def test_what_a_person_called_sent_is_not_replayed(open_desk):
    desk = open_desk(3, can=NEITHER)
    desk.script(TAKEN, 2)
    desk.deliver()
    resolve(desk.ledger, order(desk, 2), Verdict.SENT, apply=True)
    assert replay(desk.ledger, order(desk, 2), apply=True).refused == {key_of(2): "it is sent"}


def test_what_waits_of_its_own_is_told_from_what_a_replay_let_go(open_desk):
    desk = open_desk(2)
    desk.script(REFUSED, 1)
    desk.script(Fault.UNAVAILABLE_503, 2)
    desk.deliver()
    desk.sql(
        "UPDATE delivery SET state = 'retry', finished_at = NULL, proof = NULL, due_at = 0 WHERE ordinal = 2"
    )
    desk.sql("DELETE FROM attempt WHERE ordinal = 2")
    replay(desk.ledger, order(desk, 1), apply=True)
    assert replay(desk.ledger, order(desk, 1, 2), apply=True).refused == {
        key_of(1): "it is being replayed already",
        key_of(2): "it waits to be sent already",
    }


def test_of_two_replays_of_one_letter_at_once_one_wins(open_desk):
    """DUP-29."""
    desk = open_desk(3)
    desk.script(REFUSED, 2)
    desk.deliver()
    decisions = []
    both = [
        threading.Thread(target=lambda: decisions.append(replay(desk.ledger, order(desk, 2), apply=True)))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(len(decision.changed) for decision in decisions) == [0, 1]
    assert len(actions(desk)) == 1


def test_a_replay_after_the_window_has_closed_is_sent_and_nothing_else_of_the_period_is(open_desk):
    desk = open_desk(3)
    desk.script(REFUSED, 2)
    desk.deliver()
    desk.sql("UPDATE delivery SET state = 'pending', finished_at = NULL, proof = NULL, due_at = 0, token = NULL "
             "WHERE ordinal = 3")  # fmt: skip
    desk.close_window()
    replay(desk.ledger, order(desk, 2), apply=True)
    desk.deliver(run_id="run-2")
    assert desk.row(2).state == "sent"
    assert desk.row(3).state == "pending"


@pytest.mark.parametrize(
    ("keys", "who", "reason", "says"),
    [
        ((), "ann", "why", "no keys"),
        (("k",), "ann", "  ", "reason"),
        (("k",), " ", "why", "--by"),
        (tuple(f"k{n}" for n in range(1_001)), "ann", "why", "more than the 1000"),
    ],
)
def test_an_order_without_bounds_is_refused_before_anything_is_written(open_desk, keys, who, reason, says):
    """SEC-14."""
    desk = open_desk(1)
    with pytest.raises(InputError, match=says):
        replay(desk.ledger, Order(desk.digest, desk.digest.period(LABEL), keys, who, reason), apply=True)
    assert actions(desk) == []


def test_above_the_configured_count_somebody_else_has_to_approve(open_desk):
    """SEC-14."""
    desk = open_desk(3, replay={"approve_above": 1})
    desk.script(REFUSED, 1, 2)
    desk.deliver()
    proposed = replay(desk.ledger, order(desk, 1, 2), apply=True)
    assert (proposed.applied, desk.counts()["failed"]) == (False, 2)
    digests = {desk.digest.name: desk.digest}
    assert proposed.approval is not None
    for herself in ("ann", "Ann", " ann "):
        with pytest.raises(InputError, match="somebody else"):
            approve(desk.ledger, digests, proposed.approval, who=herself, apply=True)
    dry = approve(desk.ledger, digests, proposed.approval, who="bob", apply=False)
    assert (dry.applied, dry.changed, dry.order.who) == (False, [key_of(1), key_of(2)], "ann")
    assert dry.notes() == ["nothing was changed; --apply does it"]
    assert desk.counts()["failed"] == 2
    done = approve(desk.ledger, digests, proposed.approval, who="bob", apply=True, reason="I looked")
    assert sorted(done.changed) == [key_of(1), key_of(2)]
    with pytest.raises(InputError, match="no replay number"):
        approve(desk.ledger, digests, proposed.approval, who="bob", apply=True)
    asked, carried_out = actions(desk)
    assert (asked.approver, json.loads(asked.effect)["status"]) == ("bob", "approved")
    assert (carried_out.who, carried_out.approver) == ("ann", "bob")
    assert json.loads(carried_out.effect) == {
        "replayed": 2,
        "order": asked.id,
        "approved_because": "I looked",
    }
    desk.deliver(run_id="run-2")
    assert_once_each(desk, range(1, 4))


def test_an_order_that_comes_to_nothing_does_not_wait_for_anybody(open_desk):
    desk = open_desk(3, replay={"approve_above": 1})
    desk.deliver()
    decision = replay(desk.ledger, order(desk, 1, 2), apply=True)
    assert (decision.approval, len(decision.refused)) == (None, 2)
    assert actions(desk) == []


def test_an_approval_judges_anew_what_has_happened_since(open_desk):
    desk = open_desk(3, replay={"approve_above": 1})
    desk.script(REFUSED, 1, 2)
    desk.deliver()
    number = replay(desk.ledger, order(desk, 1, 2), apply=True).approval
    assert number is not None
    erase(desk, 1)
    done = approve(desk.ledger, {desk.digest.name: desk.digest}, number, who="bob", apply=True)
    assert (done.changed, done.refused) == ([key_of(2)], {key_of(1): "the customer was erased"})


@pytest.mark.parametrize(
    ("verdict", "state"),
    [(Verdict.SENT, "sent"), (Verdict.NOT_SENT, "retry"), (Verdict.WRITTEN_OFF, "written_off")],
)
def test_a_person_settles_an_unknown_that_no_evidence_will(open_desk, verdict, state):
    desk = open_desk(3, can=NEITHER)
    desk.script(TAKEN, 2)
    desk.deliver()
    assert (desk.row(2).state, desk.row(2).hold_reason) == ("unknown", "no_evidence")
    decision = resolve(desk.ledger, order(desk, 1, 2), verdict, apply=True)
    assert (decision.changed, decision.refused) == ([key_of(2)], {key_of(1): "it is sent"})
    assert desk.row(2).state == state
    (action,) = actions(desk)
    assert json.loads(action.effect) == {"as": str(verdict), "resolved": 1}


@pytest.mark.parametrize(
    "scope", [Scope("tiny_digest"), Scope("tiny_digest", "default"), Scope(gateway="sandbox")]
)
def test_nothing_is_claimed_while_it_is_paused_and_everything_goes_out_afterwards(open_desk, scope):
    desk = open_desk(3)
    assert pause(desk.ledger, scope, who="ann", reason="the campaign is wrong")
    assert not pause(desk.ledger, scope, who="ann", reason="twice")
    desk.deliver()
    assert desk.counts() == {"pending": 3}
    assert resume(desk.ledger, scope, who="ann", reason="mended")
    desk.deliver(run_id="run-2")
    assert_once_each(desk, range(1, 4))
    assert [action.kind for action in actions(desk)] == ["pause", "resume"]


def test_a_pause_of_another_digest_or_tenant_stops_nobody(open_desk):
    desk = open_desk(2)
    pause(desk.ledger, Scope("another"), who="ann", reason="why")
    pause(desk.ledger, Scope("tiny_digest", "acme"), who="ann", reason="why")
    desk.deliver()
    assert_once_each(desk, range(1, 3))


def test_an_erased_customer_is_never_sent_to_and_leaves_no_address_behind(open_desk):
    """SEC-16."""
    desk = open_desk(4, can=REPLAYS)
    desk.script(TAKEN, 2)
    desk.script(REFUSED, 3)
    desk.deliver(run_id="run-1")
    before = desk.row(4)
    for number in range(1, 5):
        erase(desk, number)
    assert (
        desk.sql("SELECT count(*) AS n FROM manifest_entry WHERE recipient IS NOT NULL OR name IS NOT NULL")[
            0
        ].n
        == 0
    )
    assert desk.sql("SELECT count(*) AS n FROM content WHERE length(document) > 0")[0].n == 0
    assert (desk.row(4).state, desk.row(4).message_id) == (before.state, before.message_id)
    assert "sent" in desk.counts()


def test_an_erased_customer_who_waited_is_cancelled_and_one_in_doubt_settles_by_a_look_up_alone(open_desk):
    """SEC-16."""
    desk = open_desk(3, can=LOOK_UP)
    desk.script(TAKEN, 2)
    desk.script(Fault.UNAVAILABLE_503, 3, attempts=9)
    desk.deliver()
    desk.sql("UPDATE delivery SET state = 'retry', finished_at = NULL, due_at = 0 WHERE ordinal = 3")
    erase(desk, 2)
    erase(desk, 3)
    assert (desk.row(2).state, desk.row(3).state, desk.row(3).suppression) == (
        "unknown",
        "suppressed",
        "erased",
    )
    desk.pass_time(6)
    desk.deliver(run_id="run-2")
    assert desk.row(2).state == "sent"
    assert len(list(desk.sandbox.oracle().acceptances(key_of(2)))) == 1


@pytest.mark.parametrize(
    ("scope", "says"),
    [
        (Scope(gateway="sandbx"), "there are: .*sandbox"),
        (Scope("tiny_digest", "acem"), "there are: default"),
    ],
)
def test_a_pause_of_a_misspelt_name_is_refused_since_it_would_stop_nobody(open_desk, scope, says):
    desk = open_desk(1)
    with pytest.raises(InputError, match=says):
        require_known(desk.ledger, scope, desk.digest)


@pytest.mark.parametrize("act", ["pause", "resume", "erase", "late"])
def test_nobody_and_no_reason_are_refused_by_every_action(open_desk, act):
    desk = open_desk(1)
    period = desk.digest.period(LABEL)

    def do(who, reason):
        match act:
            case "pause":
                pause(desk.ledger, Scope("tiny_digest"), who=who, reason=reason)
            case "resume":
                resume(desk.ledger, Scope("tiny_digest"), who=who, reason=reason)
            case "erase":
                erase_customer(
                    desk.ledger, "customer-001", digest=None, tenant=None, who=who, reason=reason, apply=True
                )
            case "late":
                allow_late(desk.ledger, desk.digest, period, who=who, reason=reason, hours=1)

    with pytest.raises(InputError, match="reason"):
        do("ann", " ")
    with pytest.raises(InputError, match="--by"):
        do(" ", "why")
    assert actions(desk) == []


def test_erasing_nobody_is_refused(open_desk):
    desk = open_desk(1)
    with pytest.raises(UnknownKeyError, match="no customer"):
        erase_customer(
            desk.ledger, "nobody", digest=None, tenant=None, who="ann", reason="asked for", apply=True
        )


def erase(desk, number):
    erase_customer(
        desk.ledger,
        f"customer-{number:03d}",
        digest=None,
        tenant=None,
        who="ann",
        reason="asked for it",
        apply=True,
    )
