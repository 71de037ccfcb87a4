import pytest

from digest_pipeline.content.message import Message
from digest_pipeline.gateways.base import Envelope
from digest_pipeline.gateways.envelopes import unsendable
from digest_pipeline.outcomes import FailureClass, Refused


def envelope(recipient: str) -> Envelope:
    return Envelope("d:p:c", recipient, Message("s@b.test", "Ann", "subject", "text", "<p>html</p>"))


def test_a_gateway_that_can_carry_it_is_given_a_local_part_beyond_ascii():
    """INP-04."""
    assert unsendable(envelope("jörg@example.test")) is None
    assert unsendable(envelope("jörg@example.test"), smtputf8=True) is None


def test_a_gateway_that_cannot_is_not_asked_and_no_other_spelling_is_tried():
    """INP-04: the domain of an address never needs it, since it is frozen in ASCII."""
    refused = unsendable(envelope("jörg@example.test"), smtputf8=False)
    assert isinstance(refused, Refused)
    assert refused.failure_class is FailureClass.RECIPIENT
    assert not refused.suppressed
    assert "@" not in refused.detail
    assert unsendable(envelope("jo@xn--bcher-kva.test"), smtputf8=False) is None


@pytest.mark.parametrize(
    "recipient",
    [
        "jo@example.test.",
        "jo.@example.test",
        "jo..x@example.test",
        '"a b"@example.test',
        "a@b.test, c@d.test",
        "",
    ],
)
def test_what_is_not_the_frozen_form_of_one_address_is_refused_whatever_the_gateway_can(recipient):
    """INP-06, SEC-12."""
    for smtputf8 in (True, False):
        assert unsendable(envelope(recipient), smtputf8=smtputf8) == Refused(
            FailureClass.RECIPIENT, "the recipient is not one plain address"
        )
