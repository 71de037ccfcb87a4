"""``digest send-test``: one customer's digest to somebody who wants to look at it, and no delivery."""

import json
from collections.abc import Iterator

import pytest

from digest_pipeline.addresses import address_hash
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import DeliveryHaltedError, EnvironmentMismatchError, InputError, UnknownKeyError
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.operations.pause import Scope, pause
from digest_pipeline.operations.send_test import Sample, Sent, send_test
from digest_pipeline_tests.cases.stage import NAMED, provider_that_says, shell_before
from digest_pipeline_tests.harness.delivering import Desk, frozen_desk, key_of
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT, PERIOD, dump, run_sql, source_url
from digest_pipeline_tests.harness.raw_http import answer

ME = "me.myself@operator.test"
PATTERN = "https://shop.test/unsubscribe/{token}"
KEYS = "a-key-of-at-least-sixteen-characters"
LINKED = {
    "subject.txt.j2": "Hello {{ customer.name }}\n",
    "body.txt.j2": "{{ items[0].item }} {{ unsubscribe_url }}\n",
    "body.html.j2": '<p>{{ items[0].item }}</p><a href="{{ unsubscribe_url }}">Unsubscribe</a>\n',
}


@pytest.fixture
def desk(tmp_path, ledger_url, sandbox, monkeypatch) -> Iterator[Desk]:
    """A frozen period whose mails link to where one unsubscribes."""
    monkeypatch.setenv("DIGEST_UNSUBSCRIBE_KEYS", KEYS)
    (tmp_path / "template").mkdir()
    for part, text in LINKED.items():
        (tmp_path / "template" / part).write_text(text, encoding="utf-8")
    with frozen_desk(tmp_path, ledger_url, sandbox, 3, content={"unsubscribe_url": PATTERN}) as found:
        yield found


def send(
    desk: Desk,
    folder,
    to: str = ME,
    gateway: Gateway | None = None,
    customer: str = "customer-002",
    environment: str = ENVIRONMENT,
) -> Sent:
    witness = Witness(folder / "home", desk.ledger.describe())
    sample = Sample(desk.digest, PERIOD, customer, "ann", "to see it", environment, witness)
    with Source(source_url(folder)) as source:
        return send_test(desk.ledger, source, gateway or desk.gateway(), sample, to)


def test_a_test_mail_marks_nothing_as_sent_and_the_customers_own_goes_out_afterwards(desk, tmp_path):
    before = dump(desk.ledger, "delivery")
    sent = send(desk, tmp_path)
    assert sent.arrived
    assert sent.key.startswith("test:")
    assert dump(desk.ledger, "delivery") == before
    assert list(desk.sandbox.oracle().accepted_keys()) == [sent.key]
    again = send(desk, tmp_path)
    assert again.arrived
    assert again.key != sent.key
    desk.deliver()
    assert desk.counts() == {"sent": 3}
    assert set(desk.sandbox.oracle().accepted_keys()) == {sent.key, again.key, *map(key_of, range(1, 4))}
    assert list(desk.sandbox.oracle().duplicates()) == []


def test_it_is_marked_goes_to_the_named_address_alone_and_its_unsubscribe_link_is_nobodys(desk, tmp_path):
    with provider_that_says(answer(202, b'{"id": "m-1"}')) as provider:
        assert send(desk, tmp_path, gateway=desk.gateway(url=provider.url)).arrived
    (request,) = provider.requests
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert body["to"] == [{"email": ME, "name": "Reader 2"}]
    assert body["subject"] == "[test] Hello Reader 2"
    headers = {one["name"]: one["value"] for one in body["headers"]}
    assert headers["List-Unsubscribe"] == "<https://shop.test/unsubscribe/test>"
    assert headers["X-Operation-Key"].startswith("test:")
    assert 'href="https://shop.test/unsubscribe/test"' in body["html"]
    for real in (key_of(2), "reader-2@example.test"):
        assert real.encode() not in request


def test_it_is_audited_without_the_address_and_takes_a_permit_of_the_gate(desk, tmp_path):
    sent = send(desk, tmp_path)
    (action,) = [one for one in dump(desk.ledger, "operator_action") if one["kind"] == "send_test"]
    assert (action["who"], action["reason"], action["period"]) == ("ann", "to see it", "2025-W10")
    assert json.loads(action["effect"]) == {"customer": "customer-002", "key": sent.key}
    assert all(ME not in repr(dump(desk.ledger, table)) for table in ("operator_action", "rate_gate"))
    (gate,) = dump(desk.ledger, "rate_gate")
    assert gate["next_free_at"] > 0


def test_it_shows_the_source_as_it_is_now_by_the_frozen_template(desk, tmp_path):
    run_sql(tmp_path, "UPDATE orders SET item = 'changed since' WHERE customer_id = 'customer-002'")
    (tmp_path / "template" / "body.txt.j2").write_text("another template\n", encoding="utf-8")
    with provider_that_says(answer(202, b'{"id": "m-1"}')) as provider:
        send(desk, tmp_path, gateway=desk.gateway(url=provider.url))
    text = json.loads(provider.requests[0].partition(b"\r\n\r\n")[2])["text"]
    assert text.startswith("changed since https://")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.INVALID_RECIPIENT_422, "refused (recipient)"),
        (Fault.UNAUTHORIZED_401, "the account is refused, not sent"),
        (Fault.THROTTLED_429, "throttled, not sent"),
        (Fault.UNAVAILABLE_503, "not sent (transient)"),
        (Fault.RESET_AFTER_ACCEPT, "unknown: it may have been sent"),
    ],
)
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_whatever_the_provider_says_is_told_and_never_taken_for_sent(desk, tmp_path, fault, said):
    desk.sandbox.control.script(Rule(fault, next=1))
    sent = send(desk, tmp_path)
    assert (sent.arrived, sent.facts()["outcome"]) == (False, said)
    assert ME not in repr(sent)


def refused(desk: Desk, folder, error: type[Exception], match: str, **how) -> None:
    with pytest.raises(error, match=match) as caught:
        send(desk, folder, **how)
    assert how.get("to", ME) not in str(caught.value)
    assert desk.sandbox.control.statistics()["arrivals"] == 0
    assert "send_test" not in {one["kind"] for one in dump(desk.ledger, "operator_action")}


def test_what_may_not_be_sent_is_refused_before_anything_leaves(desk, tmp_path):
    refused(desk, tmp_path, InputError, "not one address", to="a@b.test, c@d.test")
    refused(desk, tmp_path, UnknownKeyError, "customer-999", customer="customer-999")
    refused(desk, tmp_path, EnvironmentMismatchError, "'elsewhere'", environment="elsewhere")
    desk.sql(
        "INSERT INTO suppression (tenant, address_hash, reason, since_at) VALUES ('default', :h, 'opted_out', 1)",
        h=address_hash(ME),
    )
    refused(desk, tmp_path, InputError, "suppression list")
    pause(desk.ledger, Scope(gateway="sandbox"), who="ann", reason="maintenance")
    refused(desk, tmp_path, InputError, "the gateway sandbox is paused")
    desk.change(enabled=False)
    refused(desk, tmp_path, InputError, "sending is disabled")


def test_a_halted_gate_lets_no_test_mail_through_since_its_probes_are_the_digests(desk, tmp_path):
    desk.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=100))
    desk.deliver()
    before = desk.sandbox.control.statistics()["arrivals"]
    with pytest.raises(DeliveryHaltedError, match=r"halted \(account: 401"):
        send(desk, tmp_path)
    assert desk.sandbox.control.statistics()["arrivals"] == before


@pytest.mark.slow
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_the_command_says_what_became_of_it_and_repeats_no_address(desk, tmp_path, ledger_url):
    shell = shell_before(tmp_path, ledger_url, DIGEST_UNSUBSCRIBE_KEYS=KEYS)
    command = (
        "--log-level",
        "DEBUG",
        "send-test",
        *NAMED,
        "--customer",
        "customer-001",
        "--to",
        ME,
        "--json",
    )
    sent = shell.run(*command)
    assert (sent.code, sent.json["customer"], sent.json["outcome"]) == (0, "customer-001", "accepted"), (
        sent.err
    )
    assert ME not in sent.out + sent.err
    desk.sandbox.control.script(Rule(Fault.INVALID_RECIPIENT_422, next=1))
    assert shell.run(*command).code == 1
    off = shell.run("send-test", *NAMED, "--customer", "customer-001", "--to", ME, DIGEST_SENDING="off")
    assert (off.code, "sending is disabled" in off.error) == (2, True)
    desk.deliver()
    assert_once_each_beside_tests(desk)


def assert_once_each_beside_tests(desk: Desk) -> None:
    keys = [key for key in desk.sandbox.oracle().accepted_keys() if not key.startswith("test:")]
    assert keys == [key_of(n) for n in range(1, 4)]
    assert list(desk.sandbox.oracle().duplicates()) == []
