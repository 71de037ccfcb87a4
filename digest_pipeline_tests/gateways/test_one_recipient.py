"""SEC-04: exactly one recipient in every message on the wire."""

import json

from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.content.message import Message
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.envelopes import unsendable
from digest_pipeline.gateways.sandbox import serialise
from digest_pipeline.outcomes import FailureClass, Refused
from digest_pipeline_tests.harness.sandbox import envelope, envelopes, gateway_to, send_batch

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ADDRESS_LIKE = st.one_of(
    TEXT,
    st.lists(
        st.sampled_from(["a@b.test", ", ", ";", "<c@d.test>", '"x y"@e.test', "\r\nBcc: v@w.test", " "])
    ).map("".join),
)


@given(
    ADDRESS_LIKE,
    TEXT,
    TEXT,
    st.lists(st.tuples(st.sampled_from(["Bcc", "To", "X-A", "cC", "List-Id"]), TEXT)),
)
def test_what_can_be_sent_has_exactly_one_address_and_it_is_the_envelopes(recipient, name, text, headers):
    """SEC-04, SEC-12."""
    sent = Envelope("d:p:c", recipient, Message("a@b.test", name, "s", text, text, tuple(headers)))
    if unsendable(sent) is None:
        body = json.loads(serialise(sent))
        assert [entry["email"] for entry in body["to"]] == [recipient]
        assert recipient.count("@") == 1
        assert not set(recipient) & set(",;<> \r\n")
        assert not {h["name"].lower() for h in body["headers"]} & {"to", "cc", "bcc"}


@given(TEXT, TEXT)
def test_the_same_envelope_has_the_same_bytes(name, text):
    def build():
        return serialise(Envelope("d:p:c", "a@b.test", Message("s@b.test", name, text, text, text)))

    assert build() == build()


def test_a_second_address_is_refused_before_the_wire_for_its_own_message_only(sandbox):
    """SEC-04."""
    two = envelope("2", recipient="a@example.test, b@example.test")
    outcomes = send_batch(gateway_to(sandbox), [envelope("1"), two, envelope("3")])
    assert outcomes[1] == Refused(FailureClass.RECIPIENT, "the recipient is not one plain address")
    assert sandbox.oracle().accepted_count() == 2


def test_the_provider_sees_one_recipient_in_each_message_of_a_batch(sandbox):
    """SEC-04."""
    send_batch(gateway_to(sandbox), envelopes(200))
    oracle = sandbox.oracle()
    assert oracle.recipients_other_than_one() == 0
    assert len({acceptance.recipient_hash for acceptance in oracle.acceptances()}) == 200
