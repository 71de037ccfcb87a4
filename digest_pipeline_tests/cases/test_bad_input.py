"""Somebody's data stopped the queue. Here an odd row is mended, refused alone and counted, and stops nobody."""

import hashlib

import pytest

from digest_pipeline.addresses import address_hash
from digest_pipeline.content.message import unpack
from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.ledger import reads
from digest_pipeline_tests.cases.stage import sends
from digest_pipeline_tests.harness.delivering import (
    NEITHER,
    Desk,
    assert_once_each,
    key_of,
    match,
    sending_spec,
)
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    customer,
    dump,
    migrated,
    run_sql,
    source_url,
    tiny_source,
    write_customers,
)

NAMES = [
    "Ann\r\nBcc: x@evil.test",
    "Ann\nSubject: other",
    "Doe, Jo",
    "Acme: Sales; EU",
    'A "B" C',
    "x@y.test",
    "",
    "n" * 300,
    "total\u00005",
    "\u202eevil",
]


def named_subjects(folder):
    """Let the subject greet the customer by name."""
    (folder / "template").mkdir(exist_ok=True)
    (folder / "template" / "subject.txt.j2").write_text("Hello {{ customer.name }}!\n", encoding="utf-8")


def test_a_name_of_any_kind_stops_nobody_and_adds_no_header_and_no_recipient(open_desk_for, tmp_path):
    """INP-01, INP-03, INP-08: ten customers, each with another one, greeted by it in the subject."""
    named_subjects(tmp_path)
    desk = open_desk_for(*(customer(n, name=name, item=name or "-") for n, name in enumerate(NAMES, 1)))
    desk.deliver()
    desk.deliver(run_id="run-2")
    assert_once_each(desk, range(1, len(NAMES) + 1))
    for content, row in zip(dump(desk.ledger, "content"), dump(desk.ledger, "delivery"), strict=True):
        message = unpack(content["document"], row["payload_hash"])
        assert message.subject.isprintable()
        assert len(message.subject) < 120
        assert "\n" not in message.to_name
        assert not {name.lower() for name, _ in message.headers} & {"bcc", "cc", "to", "subject"}


ODD_ADDRESSES = {
    "jo@example.test.": "jo@example.test",
    "jörg@example.test": "jörg@example.test",
    "Jo.Upper@Example.TEST": "Jo.Upper@example.test",
    "jo+tag@bücher.test": "jo+tag@xn--bcher-kva.test",
    "jo.@example.test": None,
    "jo..x@example.test": None,
    ".jo@example.test": None,
    '"victim@evil.test x"@example.test': None,
    '"a> ORCPT=z"@example.test': None,
    '"a b"@example.test': None,
    "a@example.test, b@example.test": None,
}


def test_the_provider_is_given_the_frozen_address_byte_for_byte_or_nothing_at_all(open_desk_for):
    """INP-04, INP-06, SEC-12: what cannot be sent to is excluded up front with its reason."""
    desk = open_desk_for(*(customer(n, email=raw) for n, raw in enumerate(ODD_ADDRESSES, 1)), can=NEITHER)
    desk.deliver()
    wanted = {
        key_of(n): hashlib.sha256(sent.encode()).hexdigest()
        for n, sent in enumerate(ODD_ADDRESSES.values(), 1)
        if sent is not None
    }
    got = {one.operation_key: one.recipient_hash for one in desk.sandbox.oracle().acceptances()}
    assert got == wanted
    assert {row.state for row in desk.rows()} == {"sent"}
    assert dump(desk.ledger, "manifest")[0]["excluded"] == '{"invalid_address": 4, "unsupported_address": 3}'


def test_a_local_part_beyond_ascii_is_refused_before_the_wire_where_the_gateway_cannot_carry_it(
    open_desk_for,
):
    """INP-04: alone and with its reason; everybody else is sent to, and it is sent as it stands where it can be."""
    people = [
        customer(1),
        customer(2, email="j\u00f6rg@example.test"),
        customer(3, email="jo@b\u00fccher.test"),
    ]
    desk = open_desk_for(*people)
    desk.deliver(desk.gateway(smtputf8="false"))
    assert desk.counts() == {"sent": 2, "failed": 1}
    assert (desk.row(2).state, desk.row(2).failure_class) == ("failed", "recipient")
    assert_once_each(desk, range(1, 4, 2))
    (attempt,) = desk.attempts(2)
    assert attempt.detail == "the recipient needs SMTPUTF8, which this gateway cannot carry"
    assert sends(desk, 2) == []


def test_digests_with_nothing_to_tell_are_skipped_and_counted_whatever_emptied_them(
    tmp_path, ledger_url, sandbox
):
    """INP-13: no order at all, one that is hidden, and one that was deleted after the freeze."""
    match(sandbox, NEITHER)
    everybody = (
        "SELECT c.id AS customer_id, c.email AS recipient, c.name AS name, c.opted_in AS opted_in "
        "FROM customers AS c WHERE :period_start < :period_end ORDER BY c.position"
    )
    digest = sending_spec(tmp_path, sandbox, NEITHER, customers={"sql": everybody})
    tiny_source(tmp_path, 0).close()
    write_customers(tmp_path, [customer(1, orders=()), customer(2, hidden=1), customer(3), customer(4)])
    with migrated(ledger_url) as ledger, Source(source_url(tmp_path)) as source:
        ids = freeze(ledger, source, digest, PERIOD, "run-1").manifest_ids
        run_sql(tmp_path, "DELETE FROM orders WHERE customer_id = 'customer-003'")
        report = compose(ledger, source, digest, PERIOD, ids, "run-1")
        desk = Desk(ledger, digest, ids, sandbox)
        desk.deliver()
        with ledger.read() as conn:
            told = reads.summarise(conn, ids)
    assert (report.composed, report.empty) == (1, 3)
    assert (told.suppressed, told.states["sent"], told.coverage) == ({"empty": 3}, 1, 1.0)
    assert list(sandbox.oracle().accepted_keys()) == [key_of(4)]


@pytest.mark.parametrize(
    ("listed", "source"),
    [
        ("ann@example.test", "Ann@EXAMPLE.test"),
        ("ann@example.test", "ANN@example.test."),
        ("ann@bücher.test", "ann@xn--bcher-kva.test"),
        ("Ann@XN--BCHER-KVA.test", "ann@BÜCHER.test"),
        ("JÖRG@example.test", "jo\u0308rg@example.test"),
    ],
)
def test_an_opt_out_finds_its_address_however_it_is_spelled(open_desk_for, listed, source):
    """INP-15."""
    desk = open_desk_for(customer(1, email=source), customer(2), can=NEITHER)
    desk.sql(
        "INSERT INTO suppression (tenant, address_hash, reason, since_at) VALUES ('default', :h, 'opted_out', 1)",
        h=address_hash(listed),
    )
    desk.deliver()
    assert [(row.state, row.suppression) for row in desk.rows()] == [
        ("suppressed", "opted_out"),
        ("sent", None),
    ]
    assert list(desk.sandbox.oracle().accepted_keys()) == [key_of(2)]
