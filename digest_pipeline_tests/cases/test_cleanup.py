"""Somebody's data outlived its customer. Here an erasure reaches every place that can hold any of it."""

import zlib

from sqlalchemy import LargeBinary, String

from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline.ledger.schema import metadata
from digest_pipeline.operations.erase import erase_customer
from digest_pipeline_tests.harness.delivering import LOOK_UP
from digest_pipeline_tests.harness.ledgers import customer, dump

PRIVATE = ("zephyrine@private.test", "Zephyrine", "secret thing")
ERASED = {"manifest_entry.recipient", "manifest_entry.name", "content.document"}
"""What holds a customer's data, and is blanked when they are erased."""

HASHED = {
    "manifest_entry.recipient_hash",
    "manifest_entry.address_hash",
    "provider_event.address_hash",
    "push_receipt.address_hash",
    "suppression.address_hash",
}
"""What is kept instead: digests, that evidence still finds its row and an opt-out its address."""

NOTHING_PRIVATE = {
    "attempt": {"account", "batch_id", "claimed_by", "detail", "failure_class", "gateway", "late_message_id",
                "late_outcome", "message_id", "outcome", "stage"},
    "delivery": {"account", "batch_id", "claimed_by", "cleaned_by", "failure_class", "gateway", "hold_reason", "message_id",
                 "payload_hash", "proof", "state", "suppression"},
    "incident": {"digest", "facts", "id", "kind", "period", "severity", "subject"},
    "incident_notice": {"account", "channel", "incident_id", "outcome"},
    "ledger_identity": {"environment", "fingerprint"},
    "manifest": {"build_token", "checksum", "content_build_token", "content_checksum", "content_run_id", "digest",
                 "excluded", "freezing_run_id", "period", "render_inputs", "state", "template_hash", "tenant",
                 "time_zone"},
    "manifest_entry": {"customer_id", "operation_key"},
    "manifest_exclusion": {"customer_id", "reason"},
    "operator_action": {"approver", "digest", "effect", "keys", "kind", "period", "reason", "tenant", "who"},
    "pause": {"kind", "name"},
    "provider_event": {"account", "effect", "event_id", "kind", "message_id", "operation_key", "provider", "tenant"},
    "push_receipt": {"account", "detail", "digest", "tenant", "failure_class", "gateway", "message_id", "operation_key", "payload_hash",
                     "proof", "state"},
    "rate_gate": {"halt_reason", "name"},
    "send_batch": {"account", "gateway", "id", "members"},
    "suppression": {"operation_key", "reason", "source", "tenant"},
    "template": {"hash", "text"},
}  # fmt: skip
"""Keys, counts, classes and what an operator wrote: never an address, a name or content."""


def test_every_column_that_could_hold_a_customers_data_was_looked_at():
    """CLN-05: a column that comes new fails here until somebody says what it may hold."""
    reviewed = ERASED | HASHED | {f"{t}.{c}" for t, columns in NOTHING_PRIVATE.items() for c in columns}
    found = {
        f"{table.name}.{column.name}"
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, String | LargeBinary)
    }
    assert found == reviewed


def everything(ledger):
    """Return every row of every table as text, with the documents unpacked."""
    texts = []
    for table in metadata.tables:
        for row in dump(ledger, table):
            document = row.pop("document", b"")
            texts.append(repr(row) + (zlib.decompress(document).decode() if document else ""))
    return "\n".join(texts)


def test_after_an_erasure_no_table_holds_anything_of_the_customer(open_desk_for):
    """CLN-05, SEC-16: sent, failed, suppressed, in doubt: whatever state the delivery is in."""
    address, name, item = PRIVATE
    desk = open_desk_for(
        *(customer(n, email=f"{n}{address}", name=f"{name} {n}", item=f"{item} {n}") for n in range(1, 5)),
        customer(5, opted_in=0, email=f"5{address}", name=f"{name} 5"),
        customer(6),
        can=LOOK_UP,
    )
    desk.script(Fault.INVALID_RECIPIENT_422, 2)
    desk.script(Fault.RESET_AFTER_ACCEPT, 3)
    desk.sql("UPDATE delivery SET state = 'suppressed', suppression = 'opted_out', finished_at = 1, due_at = NULL "
             "WHERE ordinal = 4")  # fmt: skip
    desk.deliver()
    assert desk.counts() == {"sent": 2, "failed": 1, "unknown": 1, "suppressed": 1}
    before = everything(desk.ledger)
    assert all(one in before for one in PRIVATE)
    states = desk.counts()
    for number in range(1, 5):
        erase_customer(
            desk.ledger,
            f"customer-00{number}",
            digest=None,
            tenant=None,
            who="ann",
            reason="asked",
            apply=True,
        )
    after = everything(desk.ledger)
    assert [one for one in PRIVATE if one in after] == []
    assert "reader-6@example.test" in after
    assert desk.counts() == states
    desk.pass_time(60)
    desk.deliver(run_id="run-2")
    assert desk.row(3).state == "sent"
    assert desk.sandbox.control.statistics()["arrivals"] == 5  # four sends and one question
