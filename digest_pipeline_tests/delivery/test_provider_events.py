"""Provider events while a run is sending: early ones, and those that settle what the run could not."""

from __future__ import annotations

import time
from pathlib import Path

from digest_pipeline.cleanup.clean import clean
from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.delivery.run import deliver, prepare
from digest_pipeline.gateways import registry
from digest_pipeline.lab.providers.process import ProviderProcess
from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.ledger import provider_events
from digest_pipeline.ledger.event_effects import EventKind
from digest_pipeline.ledger.event_messages import Event
from digest_pipeline.ledger.provider_events import Taken
from digest_pipeline_tests.harness.delivering import (
    BOTH,
    NEITHER,
    Desk,
    assert_once_each,
    frozen_desk,
    key_of,
)
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    customer,
    dump,
    frozen_period,
    migrated,
    states,
    tiny_source,
    tiny_spec,
    write_customers,
)


def report(desk: Desk, number: int, kind: str = "delivered") -> Taken:
    """Let the provider report about a customer's message, in words of its own."""
    event = Event("sandbox", f"{kind}-{number}", EventKind(kind), key_of(number), f"its-{number}")
    limits = desk.digest.suppression
    return desk.ledger.transact(
        lambda conn: provider_events.take_in(conn, event, lambda _digest: limits)
    ).taken


def until_accepted(desk: Desk, number: int) -> None:
    """Wait until the provider has a customer's message, whatever it has answered."""
    deadline = time.monotonic() + 30
    while key_of(number) not in desk.sandbox.oracle().accepted_keys():
        assert time.monotonic() < deadline, "the provider never got it"
        time.sleep(0.01)


def test_an_event_that_comes_before_the_answer_is_applied_when_the_answer_is_stored(
    tmp_path: Path, ledger_url: str, sandbox: SandboxProcess
) -> None:
    """CLS-15: the webhook is delivered while the HTTP response is held; then the response is released."""
    with frozen_desk(tmp_path, ledger_url, sandbox, customers=3, can=BOTH) as desk:
        desk.script(Fault.HELD_AFTER_ACCEPT, 2)
        run = desk.deliver_meanwhile()
        until_accepted(desk, 2)
        assert report(desk, 2) is Taken.PARKED
        assert desk.row(2).state == "claimed"
        desk.sandbox.control.release()
        done = run.result()
        assert (done.accepted, done.lost_claims) == (3, 0)
        assert (desk.row(2).state, desk.row(2).proof) == ("sent", "delivered")
        (attempt,) = desk.attempts(2)
        assert (attempt.outcome, attempt.late_outcome) == ("accepted", None)
        assert_once_each(desk, range(1, 4))


def test_an_event_that_came_before_the_answer_was_lost_settles_the_unknown(
    tmp_path: Path, ledger_url: str, sandbox: SandboxProcess
) -> None:
    """CLS-15: nothing else could: the provider repeats no answers and cannot be asked."""
    with frozen_desk(tmp_path, ledger_url, sandbox, customers=3, can=NEITHER) as desk:
        desk.change(timeout_seconds=2)
        desk.script(Fault.TIMEOUT_AFTER_ACCEPT, 2)
        run = desk.deliver_meanwhile()
        until_accepted(desk, 2)
        assert report(desk, 2) is Taken.PARKED
        run.result()
        row = desk.row(2)
        assert (row.state, row.proof, row.message_id, row.ambiguous_at) == (
            "sent",
            "delivered",
            "its-2",
            None,
        )
        assert [attempt.outcome for attempt in desk.attempts(2)] == ["ambiguous"]
        assert_once_each(desk, range(1, 4))


def test_an_unknown_is_settled_by_a_later_event_and_cleaned_once(
    tmp_path: Path, ledger_url: str, sandbox: SandboxProcess
) -> None:
    """CLN-03: time-out after the acceptance, cleanup, then a 'delivered' event, cleanup again."""
    with frozen_desk(tmp_path, ledger_url, sandbox, customers=1, can=NEITHER) as desk:
        desk.script(Fault.RESET_AFTER_ACCEPT, 1)
        desk.deliver()
        assert desk.row(1).state == "unknown"
        assert _cleaned(desk) == 0
        assert len(dump(desk.ledger, "content")) == 1
        assert report(desk, 1) is Taken.APPLIED
        assert [_cleaned(desk), _cleaned(desk)] == [1, 0]
        assert dump(desk.ledger, "content") == []


def test_an_address_that_the_provider_refuses_for_good_is_suppressed_with_the_refusal(
    tmp_path: Path, ledger_url: str
) -> None:
    """CLS-13: in the transaction that settles it, for a time, and nobody else's address."""
    digest = tiny_spec(tmp_path, suppression={"hard_bounce_days": 2}, sending={"run_limit_seconds": 45})
    with (
        ProviderProcess("postmark", tmp_path / "postmark.db", api_key="token-1") as postmark,
        migrated(ledger_url) as ledger,
        tiny_source(tmp_path, customers=1) as source,
    ):
        write_customers(tmp_path, [customer(2, email="gone@suppressed.example"), customer(3)])
        manifests = frozen_period(ledger, digest, PERIOD, source)
        gateway = registry.create("postmark", {"url": postmark.url, "server_token": "token-1"})
        plan = SendPlan(digest, manifests, gateway, "run-1", "s1")
        ledger.transact(lambda conn: prepare(conn, plan))
        deliver(ledger, plan)
        assert states(ledger, manifests[0]) == {1: "sent", 2: "failed", 3: "sent"}
        (row,) = dump(ledger, "suppression")
        assert (row["reason"], row["source"], row["operation_key"]) == ("bounced", "refusal", key_of(2))
        assert row["expires_at"] - row["since_at"] == 2 * 86_400_000_000


def _cleaned(desk: Desk) -> int:
    return clean(desk.ledger, desk.digest, desk.manifest_ids, "run-9")
