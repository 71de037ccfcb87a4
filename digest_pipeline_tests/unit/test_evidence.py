from datetime import timedelta
from itertools import product

import pytest

from digest_pipeline.delivery.plan import evidence_for, resend_lifetime
from digest_pipeline.gateways.base import Capabilities, Idempotency
from digest_pipeline.outcomes import Absent, Found, LookUpFailed, Proof
from digest_pipeline.reconciliation.evidence import APART, Doubt, Finding, apart, judge, visible_from
from digest_pipeline.states import HoldReason

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND
TIMEOUT, VISIBILITY, RETENTION = 30.0, 60, 3_600
LEASE = 180
CAN = Capabilities(
    look_up=True,
    visibility_delay=timedelta(seconds=VISIBILITY),
    look_up_retention=timedelta(seconds=RETENTION),
)
ENDED = T0 + 10 * SECOND
VISIBLE = ENDED + 90 * SECOND
FORGOTTEN = T0 + int((RETENTION - TIMEOUT) * SECOND)
"""The last moment at which a question still counts: its answer may take as long as the time-out."""
NEVER_ABSENT = Doubt(first_at=T0, last_ended_at=ENDED, absent_at=None)
ABSENT_BEFORE = Doubt(first_at=T0, last_ended_at=ENDED, absent_at=VISIBLE)
SECOND_COUNTS = VISIBLE + VISIBILITY * SECOND
MOMENTS = {
    "at once": ENDED,
    "just before it must show": VISIBLE - 1,
    "when it must show": VISIBLE,
    "just before the second counts": SECOND_COUNTS - 1,
    "when the second counts": SECOND_COUNTS,
    "in the last moment of retention": FORGOTTEN,
    "past retention": FORGOTTEN + 1,
}


def ask(answer, doubt=NEVER_ABSENT, at=VISIBLE, control=True, can=CAN):
    return judge(answer, doubt, can, TIMEOUT, at, control_found=control)


@pytest.mark.parametrize(
    ("found", "doubt", "at", "control"),
    list(
        product(
            [Found("m-1"), Found(None), Found("m-1", Proof.BOUNCED), Found("m-1", copies=2)],
            [NEVER_ABSENT, ABSENT_BEFORE],
            MOMENTS.values(),
            [True, False],
        )
    ),
)
def test_any_hit_is_sent_whenever_it_was_asked(found, doubt, at, control):
    assert ask(found, doubt, at, control) is Finding.SENT


ABSENCES = {
    "at once": (Finding.ASK_LATER, Finding.ASK_LATER),
    "just before it must show": (Finding.ASK_LATER, Finding.ASK_LATER),
    "when it must show": (Finding.ABSENT_ONCE, Finding.ASK_LATER),
    "just before the second counts": (Finding.ABSENT_ONCE, Finding.ASK_LATER),
    "when the second counts": (Finding.ABSENT_ONCE, Finding.DISPROVED),
    "in the last moment of retention": (Finding.ABSENT_ONCE, Finding.DISPROVED),
    "past retention": (Finding.NO_EVIDENCE, Finding.NO_EVIDENCE),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_absence_counts_only_when_visible_and_retained_and_the_second_only_apart(moment):
    found = [ask(Absent(), doubt, MOMENTS[moment]) for doubt in (NEVER_ABSENT, ABSENT_BEFORE)]
    assert tuple(found) == ABSENCES[moment]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("doubt", [NEVER_ABSENT, ABSENT_BEFORE])
@pytest.mark.parametrize(
    ("answer", "control"), [(Absent(), False), (LookUpFailed("502"), True), (LookUpFailed("502"), False)]
)
def test_without_a_readable_answer_and_a_known_key_found_nothing_is_concluded(moment, doubt, answer, control):
    over = moment == "past retention"
    assert ask(answer, doubt, MOMENTS[moment], control) is (
        Finding.NO_EVIDENCE if over else Finding.ASK_LATER
    )


def test_two_absences_lie_apart_even_where_a_provider_shows_everything_at_once():
    instant = Capabilities(
        look_up=True, visibility_delay=timedelta(0), look_up_retention=timedelta(seconds=RETENTION)
    )
    assert apart(instant) == APART
    assert apart(CAN) == VISIBILITY * SECOND
    doubt = Doubt(T0, ENDED, absent_at=T0 + 50 * SECOND)
    assert ask(Absent(), doubt, T0 + 50 * SECOND + APART - 1, can=instant) is Finding.ASK_LATER
    assert ask(Absent(), doubt, T0 + 50 * SECOND + APART, can=instant) is Finding.DISPROVED


def test_visibility_is_counted_from_the_end_of_the_newest_suspect_and_its_time_out():
    assert visible_from(NEVER_ABSENT, CAN, TIMEOUT) == VISIBLE
    later = Doubt(T0, ENDED + 5 * SECOND, None)
    assert visible_from(later, CAN, TIMEOUT) == VISIBLE + 5 * SECOND


def test_retention_is_counted_from_the_first_suspect():
    doubt = Doubt(T0, T0 + RETENTION * SECOND, None)
    assert ask(Absent(), doubt, FORGOTTEN + 1) is Finding.NO_EVIDENCE


def replaying(lifetime):
    return Capabilities(idempotency=Idempotency.REPLAYS, key_lifetime=lifetime)


@pytest.mark.parametrize(
    ("lifetime", "usable"),
    [(timedelta(hours=24), 23 * 3600), (timedelta(hours=10), 9 * 3600), (timedelta(minutes=10), 540)],
)
def test_a_key_is_trusted_for_its_lifetime_less_an_hour_or_a_tenth_and_less_the_lease(lifetime, usable):
    assert resend_lifetime(replaying(lifetime), LEASE) == (usable - LEASE) * SECOND


def test_a_key_that_lives_no_longer_than_a_claim_allows_no_resend():
    assert resend_lifetime(replaying(timedelta(seconds=LEASE)), LEASE) is None


def test_keys_that_are_refused_or_missing_never_allow_a_resend():
    refuses = Capabilities(idempotency=Idempotency.REFUSES, key_lifetime=timedelta(hours=24))
    assert resend_lifetime(refuses, LEASE) is None
    assert resend_lifetime(CAN, LEASE) is None


def test_evidence_is_due_at_once_by_resend_later_by_look_up_and_never_without_either():
    assert evidence_for(replaying(timedelta(hours=24)), TIMEOUT, LEASE).delay == 0.0
    assert evidence_for(CAN, TIMEOUT, LEASE).delay == TIMEOUT + VISIBILITY
    neither = evidence_for(Capabilities(), TIMEOUT, LEASE)
    assert (neither.delay, neither.hold) == (None, HoldReason.NO_EVIDENCE)
