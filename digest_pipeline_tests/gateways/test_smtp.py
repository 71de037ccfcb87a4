"""The SMTP gateway against a server that fails at every step of the dialogue, and against aiosmtpd."""

import asyncio
import base64
import logging
from datetime import timedelta

import pytest
from aiosmtpd.controller import Controller

from digest_pipeline.content.message import Message
from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.envelopes import keyed
from digest_pipeline.lab.smtp.process import SmtpProcess
from digest_pipeline.lab.smtp.script import DROP, HARSH, LATE, SILENCE, Scripted, harsh
from digest_pipeline.outcomes import (
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    NotSent,
    Refused,
    Stage,
    Throttled,
)
from digest_pipeline_tests.gateways.stands_local import PASSWORD, USER, gateway_to
from digest_pipeline_tests.harness.command import free_port
from digest_pipeline_tests.harness.sandbox import envelope


@pytest.fixture
def relay(open_stands):
    process = open_stands("smtp").process
    process.control.reset()
    return process


@pytest.fixture(scope="module")
def old_relay(tmp_path_factory):
    """A relay that offers no STARTTLS and no SMTPUTF8, and takes small messages only."""
    store = tmp_path_factory.mktemp("old") / "smtp.db"
    with SmtpProcess(
        store, user=USER, password=PASSWORD, starttls=False, smtputf8=False, size=2000
    ) as process:
        yield process


def send(gateway, *envelopes):
    async def run():
        async with gateway:
            return [await gateway.send(one) for one in envelopes]

    return asyncio.run(run())


def outcome_of(relay, *orders, sent=None, **settings):
    relay.script(*orders)
    (outcome,) = send(gateway_to(relay, **settings), sent or envelope())
    return outcome


TRANSIENT = NotSent, FailureClass.TRANSIENT
CONNECT = NotSent, FailureClass.CONNECT
RECIPIENT = Refused, FailureClass.RECIPIENT
CONTENT = Refused, FailureClass.CONTENT
HALT, DOUBT, SLOWER = (AccountRefused, None), (Ambiguous, None), (Throttled, None)

STEP_BY_STEP = {
    "connect": {"421": TRANSIENT, "450": TRANSIENT, "454": TRANSIENT, "550": HALT, "535": HALT, DROP: CONNECT, SILENCE: CONNECT},
    "ehlo": {"421": TRANSIENT, "450": TRANSIENT, "454": TRANSIENT, "550": HALT, "535": HALT, DROP: CONNECT, SILENCE: CONNECT},
    "starttls": {"421": TRANSIENT, "450": TRANSIENT, "454": TRANSIENT, "550": HALT, "535": HALT, DROP: CONNECT, SILENCE: CONNECT},
    "auth": {"421": TRANSIENT, "450": HALT, "454": HALT, "550": HALT, "535": HALT, DROP: CONNECT, SILENCE: CONNECT},
    "mail": {"421": TRANSIENT, "450": TRANSIENT, "454": TRANSIENT, "550": HALT, "535": HALT, DROP: TRANSIENT, SILENCE: TRANSIENT},
    "rcpt": {"421": TRANSIENT, "450": TRANSIENT, "454": TRANSIENT, "550": RECIPIENT, "535": HALT, DROP: TRANSIENT, SILENCE: TRANSIENT},
    "data": {"421": TRANSIENT, "450": TRANSIENT, "454": TRANSIENT, "550": CONTENT, "535": HALT, DROP: TRANSIENT, SILENCE: TRANSIENT},
    "dot": {"421": TRANSIENT, "450": TRANSIENT, "454": SLOWER, "550": CONTENT, "535": HALT, DROP: DOUBT, SILENCE: DOUBT},
}  # fmt: skip


@pytest.mark.parametrize(
    ("step", "action"), [(step, action) for step, actions in STEP_BY_STEP.items() for action in actions]
)
def test_each_answer_at_each_step_means_what_the_table_says_and_nothing_is_accepted(relay, step, action):
    """CLS-03, DUP-06."""
    kind, failure = STEP_BY_STEP[step][action]
    said = action if action in (DROP, SILENCE) else f"{action} said on purpose"
    outcome = outcome_of(relay, Scripted(step, said))
    assert type(outcome) is kind
    assert getattr(outcome, "failure_class", None) == failure
    assert relay.oracle().accepted_count() == 0
    if isinstance(outcome, NotSent) and action == SILENCE:
        assert outcome.detail == f"no reply to {step}: TimeoutError"


@pytest.mark.parametrize("action", [DROP, SILENCE, "999 what?"])
def test_an_answer_that_is_lost_behind_the_final_dot_is_in_doubt(relay, action):
    """DUP-07: the server has the message, and nobody said so."""
    outcome = outcome_of(relay, Scripted("dot", action, accepts=True))
    assert isinstance(outcome, Ambiguous)
    assert relay.oracle().accepted_count() == 1


def test_a_connection_in_doubt_never_carries_another_message(relay):
    relay.script(Scripted("dot", SILENCE, accepts=True))
    first, second = send(gateway_to(relay), envelope("1"), envelope("2"))
    assert [type(first), type(second)] == [Ambiguous, Accepted]
    requests = [one["request"] for one in relay.control.acceptances()]
    assert len(set(requests)) == 2


@pytest.mark.parametrize(
    "order", [Scripted("dot", LATE, accepts=True), Scripted("quit", "421 closing"), Scripted("quit", DROP)],
    ids=lambda order: order.name,
)  # fmt: skip
def test_a_clear_yes_stands_however_late_it_is_and_whatever_follows(relay, order):
    """DUP-09."""
    outcome = outcome_of(relay, order, time_out="5s")
    assert isinstance(outcome, Accepted)
    assert outcome.message_id
    assert relay.oracle().accepted_count() == 1


def test_a_refusal_stands_although_the_server_is_silent_behind_it(relay):
    """The time runs out while the refused message is being forgotten."""
    outcome = outcome_of(relay, Scripted("dot", "554 5.7.1 spam"), Scripted("rset", SILENCE))
    assert (type(outcome), outcome.failure_class) == CONTENT


def test_a_reply_that_comes_before_its_command_is_never_taken_for_the_verdict(relay):
    """A second line behind the 354 would be read as the answer to the message."""
    outcome = outcome_of(relay, Scripted("data", "354 go ahead\r\n250 2.0.0 queued as 4Fx1"))
    assert (type(outcome), outcome.failure_class) == TRANSIENT
    assert relay.oracle().accepted_count() == 0


def test_a_goodbye_in_one_breath_with_the_yes_leaves_the_yes_and_ends_the_connection(relay):
    relay.script(Scripted("dot", "250 2.0.0 Ok: queued as 4Fx1\r\n421 4.4.2 closing", accepts=True))
    outcomes = send(gateway_to(relay, time_out="5s"), envelope("1"), envelope("2"))
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted]
    assert outcomes[0].message_id == "4Fx1"
    assert len({one["request"] for one in relay.control.acceptances()}) == 2


def test_a_reply_of_several_lines_is_read_as_one(relay):
    outcome = outcome_of(
        relay, Scripted("rcpt", "550-5.1.1 no such user here\r\n550 5.1.1 ask the help desk")
    )
    assert (type(outcome), outcome.failure_class, outcome.suppressed) == (*RECIPIENT, True)
    assert outcome.detail == "rcpt 550 5.1.1 no such user here 5.1.1 ask the help desk"


def test_messages_share_a_connection_while_every_answer_is_clear(relay):
    outcomes = send(gateway_to(relay), *(envelope(str(number)) for number in range(5)))
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    assert len({one["request"] for one in relay.control.acceptances()}) == 1


def test_a_refused_recipient_stops_nobody_else_on_the_same_connection(relay):
    """LOST-17."""
    sent = [envelope("1"), envelope("2", recipient="nobody@bounce.example"), envelope("3")]
    outcomes = send(gateway_to(relay), *sent)
    assert [type(outcome) for outcome in outcomes] == [Accepted, Refused, Accepted]
    assert outcomes[1].suppressed
    assert "nobody" not in repr(outcomes)


@pytest.mark.parametrize("action", [DROP, "421 4.4.2 idle for too long"])
def test_a_kept_connection_that_the_server_has_given_up_is_replaced_before_anything_left(relay, action):
    async def run():
        async with gateway_to(relay, time_out="5s") as gateway:
            first = await gateway.send(envelope("1"))
            await asyncio.to_thread(relay.script, Scripted("mail", action))
            return [first, await gateway.send(envelope("2"))]

    assert [type(outcome) for outcome in asyncio.run(run())] == [Accepted, Accepted]
    assert [relay.oracle().attempts(envelope(str(number)).operation_key) for number in (1, 2)] == [1, 1]


@pytest.mark.parametrize("reply", ["450 4.2.0 greylisted", "451 4.7.1 try again later"])
def test_a_greylisted_recipient_waits_for_minutes_and_is_no_invalid_address(relay, reply):
    """CLS-01."""
    outcome = outcome_of(relay, Scripted("rcpt", reply))
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after == timedelta(minutes=5).total_seconds()
    assert outcome_of(relay, Scripted("rcpt", reply), put_off="10m").retry_after == 600


def test_throttling_behind_the_dot_closes_the_gate_and_is_no_attempt(relay):
    """CLS-02."""
    assert isinstance(outcome_of(relay, Scripted("dot", "454 4.7.0 too fast")), Throttled)


@pytest.mark.parametrize(
    ("step", "reply", "kind", "failure"),
    [
        ("rcpt", "550 5.1.1 no such user", Refused, FailureClass.RECIPIENT),
        ("rcpt", "550 5.2.1 disabled", Refused, FailureClass.RECIPIENT),
        ("rcpt", "550 5.7.1 relaying denied", AccountRefused, None),
        ("rcpt", "550 5.7.515 not authenticated", AccountRefused, None),
        ("mail", "553 5.1.8 bad sender", AccountRefused, None),
        ("mail", "552 5.3.4 too large", Refused, FailureClass.CONTENT),
        ("mail", "553 5.6.7 no such address outside ASCII", Refused, FailureClass.RECIPIENT),
        ("dot", "554 5.7.1 looks like spam", Refused, FailureClass.CONTENT),
        ("dot", "550 5.7.26 not authenticated", AccountRefused, None),
        ("dot", "552 5.3.4 too large", Refused, FailureClass.CONTENT),
        ("dot", "550 5.1.1 no such user", Refused, FailureClass.RECIPIENT),
        ("mail", "999 what?", NotSent, FailureClass.TRANSIENT),
        ("mail", "454 Throttling failure: Maximum sending rate exceeded.", Throttled, None),
        ("dot", "454 Throttling failure: Daily message quota exceeded.", AccountRefused, None),
        ("rcpt", "550 5.4.5 Daily user sending limit exceeded", AccountRefused, None),
        ("rcpt", "452 4.2.2 the mailbox is over its quota", NotSent, FailureClass.TRANSIENT),
        ("rcpt", "454 4.7.1 relay access denied", NotSent, FailureClass.TRANSIENT),
    ],
)
def test_an_enhanced_code_says_whose_fault_it_is(relay, step, reply, kind, failure):
    """CLS-03."""
    outcome = outcome_of(relay, Scripted(step, reply))
    assert type(outcome) is kind
    assert getattr(outcome, "failure_class", None) == failure


@pytest.mark.parametrize(
    ("orders", "settings", "word"),
    [
        ([], {"password": "wrong"}, "credentials 535"),
        ([Scripted("auth", "454 4.7.0 temporary")], {}, "transient account"),
        ([], {"security": "none", "host": "127.0.0.1"}, "configuration:"),
    ],
)
def test_a_login_that_fails_is_nobodys_failure_and_says_of_what_kind(relay, orders, settings, word):
    """CLS-05: refused, refused for now, and no way that both sides know."""
    outcome = outcome_of(relay, *orders, **settings)
    assert isinstance(outcome, AccountRefused)
    assert outcome.detail.startswith(word)


def test_neither_password_nor_recipient_is_shown_by_anything(relay, caplog):
    """SEC-01: the server repeats the login in its refusal, and the library's logger is at DEBUG."""
    caplog.set_level(logging.DEBUG)
    wrong = "S3cr3t@other/%"
    gateway = gateway_to(relay, password=wrong)
    (outcome,) = send(gateway, envelope(recipient="very.personal@example.test"))
    token = base64.b64encode(f"\0{USER}\0{wrong}".encode()).decode()
    shown = "\n".join([repr(outcome), repr(gateway), repr(vars(gateway)), caplog.text])
    for secret in (wrong, token, base64.b64encode(wrong.encode()).decode(), "S3cr3t", "very.personal"):
        assert secret not in shown


def test_without_starttls_nothing_is_said_in_the_clear(old_relay):
    old_relay.control.reset()
    (outcome,) = send(gateway_to(old_relay), envelope())
    assert outcome == AccountRefused("configuration: the server offers no STARTTLS")
    assert old_relay.oracle().accepted_count() == 0


def test_letters_outside_ascii_go_where_the_server_takes_them_and_nowhere_else(relay, old_relay):
    """INP-04."""
    sent = envelope(recipient="jörg@example.test")
    (taken,) = send(gateway_to(relay), sent)
    assert isinstance(taken, Accepted)
    old_relay.control.reset()
    gateway = gateway_to(old_relay, security="tls", port=str(old_relay.tls_port), time_out="5s")
    refused, next_one = send(gateway, sent, envelope("2"))
    assert (type(refused), refused.failure_class) == RECIPIENT
    assert isinstance(next_one, Accepted)
    assert list(old_relay.oracle().accepted_keys()) == [envelope("2").operation_key]


def test_a_message_that_is_too_large_is_told_before_it_is_sent(old_relay):
    old_relay.control.reset()
    gateway = gateway_to(old_relay, security="tls", port=str(old_relay.tls_port), time_out="5s")
    (outcome,) = send(gateway, envelope(text="x" * 2000))
    assert (type(outcome), outcome.failure_class) == CONTENT
    assert "the server takes 2000" in outcome.detail
    assert old_relay.oracle().attempts(envelope().operation_key) == 0


def test_a_certificate_of_an_unknown_authority_is_no_connection(relay):
    (outcome,) = send(gateway_to(relay, ca_file=""), envelope())
    assert (type(outcome), outcome.failure_class) == CONNECT
    assert outcome.stage is Stage.BEFORE_WIRE


def test_tls_from_the_first_byte(relay):
    (outcome,) = send(gateway_to(relay, security="tls", port=str(relay.tls_port)), envelope())
    assert isinstance(outcome, Accepted)


@pytest.mark.parametrize(
    "recipient", ['"victim@evil.test x"@example.test', "a@b.test> NOTIFY=NEVER", "a b@c.test"]
)
def test_an_address_that_could_mean_another_never_reaches_the_server(relay, recipient):
    """SEC-12."""
    (outcome,) = send(gateway_to(relay), envelope(recipient=recipient))
    assert isinstance(outcome, Refused)
    assert relay.oracle().recipients_other_than_one() == relay.oracle().accepted_count() == 0


@pytest.mark.parametrize(
    "wrong",
    [{"security": "none", "host": "relay.example"}, {"security": "ssl"}, {"password": ""}, {"port": "x"},
     {"security": "none", "host": "relay.example", "allow_plain": "true"},
     {"ca_file": "/nowhere.pem"}, {"envelope_from": "Two <a@b.test>"}],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused_by_name(relay, wrong):
    with pytest.raises(SpecError) as caught:
        gateway_to(relay, **wrong)
    assert PASSWORD not in str(caught.value)


def test_a_relay_of_a_trusted_network_may_be_spoken_to_in_the_clear_without_a_login():
    settings = {"host": "relay.example", "security": "none", "local_hostname": "client.example"}
    with pytest.raises(SpecError, match="allow_plain"):
        registry.create("smtp", settings)
    assert registry.create("smtp", settings | {"allow_plain": "true"}).name == "smtp"


class Inbox:
    """What aiosmtpd hands over: the envelope and the bytes as they were on the wire, dots undone."""

    def __init__(self):
        self.received = []

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd's name
        self.received.append((envelope.mail_from, list(envelope.rcpt_tos), envelope.content))
        return "250 2.0.0 Ok: queued as 4Fx1"


def test_aiosmtpd_gets_the_same_bytes_for_one_recipient(tmp_path):
    """INP-12, SEC-04: long lines, dots at their beginnings, and exactly one address."""
    inbox = Inbox()
    port = free_port()
    controller = Controller(inbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        settings = {"host": "127.0.0.1", "port": str(port), "security": "none", "time_out": "5s"}
        text = ".\n..two\n" + "x" * 5000
        message = Message(
            "Digest <digest@sender.test>", "Doe, Jo", "Your week", text, f"<p>{text}</p>", (), "b1"
        )
        outcomes = send(
            registry.create("smtp", settings | {"local_hostname": "client.example"}),
            Envelope("d:p:1", "jo@example.test", message),
            Envelope("d:p:2", "ann@example.test", message),
        )
    finally:
        controller.stop()
    assert [outcome.message_id for outcome in outcomes] == ["4Fx1", "4Fx1"]
    (sender, recipients, content), (_, others, _) = inbox.received
    assert (sender, recipients, others) == ("digest@sender.test", ["jo@example.test"], ["ann@example.test"])
    assert content == to_mime(keyed(Envelope("d:p:1", "jo@example.test", message)), "jo@example.test")
    lines = content.split(b"\r\n")
    assert b"..two" in lines
    assert max(map(len, lines)) <= 998
    assert not any(b"\n" in line or b"\r" in line for line in lines)
    assert content.count(b"@example.test") == 1


def test_a_harsh_plan_is_the_seeds_and_leaves_out_no_way_to_fail():
    plans = [[order.name for order in harsh(seed)] for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {order.name for order in HARSH} == set(plans[0]) == set(plans[2])
    assert len({order.name for order in HARSH}) == len(HARSH)
