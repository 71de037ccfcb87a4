"""What needs a person although no run fails: halts, held unknowns, closed windows, periods nobody ran."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from digest_pipeline.delivery.plan import gate_name
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.sanitise import sanitise
from digest_pipeline.installation import make_gateway
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import attention, gates, reads
from digest_pipeline.ledger.attention import Waiting
from digest_pipeline.ledger.gates import GateState
from digest_pipeline.ledger.incidents import Identity
from digest_pipeline.notify.incident import SHOWN_KEYS, Facts, Finding, Kind, Severity
from digest_pipeline.reconciliation.reporting.next_steps import NEEDS_A_PERSON
from digest_pipeline.spec import Digest
from digest_pipeline.states import HoldReason

LATEST_PERIODS = 8
"""How many ended periods are asked whether anybody ran them."""

# A closed window holds an unknown too: its re-send could be the first mail, late.
_UNDECIDED = (*NEEDS_A_PERSON, HoldReason.WINDOW_CLOSED)


def conditions(conn: Connection, digest: Digest) -> Iterator[Finding]:
    """Yield what the ledger shows now of a digest. Where it is not to send, nothing is late or missed."""
    at = reads.now(conn)
    yield from _halted(conn, digest, at)
    for waiting in attention.held_unknowns(conn, digest.name, _UNDECIDED, SHOWN_KEYS):
        yield _unknown(digest, waiting, at)
    if digest.sending.enabled:
        for waiting in attention.unsent_after_window(conn, digest.name, SHOWN_KEYS):
            yield _unsent(digest, waiting, at)
        yield from _missed(conn, digest, at)


def _gate(conn: Connection, digest: Digest) -> GateState | None:
    try:
        return gates.read(conn, gate_name(make_gateway(digest)))
    except SpecError:
        return None  # without its settings nothing is sent either, and each run says so


def _halted(conn: Connection, digest: Digest, at: int) -> Iterator[Finding]:
    gate = _gate(conn, digest)
    if gate is None or gate.halt_reason is None:
        return
    text = (
        f"Sending through {gate.name} is halted ({sanitise(gate.halt_reason)}): mend the account, then run the "
        "period again. It tries one message, and goes on by itself if that is accepted."
    )
    command = f"digest status --digest {digest.name}"
    yield Finding(
        Identity(Kind.SENDING_HALTED, digest.name, "", gate.name), Severity.CRITICAL, Facts(text, command), at
    )


def _unknown(digest: Digest, waiting: Waiting, at: int) -> Finding:
    text = f"Nobody knows whether these were sent ({waiting.reason}), and no evidence will come by itself."
    facts = Facts(
        text,
        f"digest unknowns list --digest {digest.name} --period {waiting.period}",
        (("unknown", waiting.count),),
        waiting.keys,
    )
    what = Identity(Kind.UNKNOWN_HELD, digest.name, waiting.period, waiting.reason)
    return Finding(what, Severity.ERROR, facts, at)


def _unsent(digest: Digest, waiting: Waiting, at: int) -> Finding:
    facts = Facts(
        "The delivery window has closed, and these were not sent. To send them late, say why; to let it be, "
        f"digest close --digest {digest.name} --period {waiting.period} --reason ...",
        f'digest run --digest {digest.name} --period {waiting.period} --allow-late "REASON"',
        (("unsent", waiting.count),),
        waiting.keys,
    )
    what = Identity(Kind.WINDOW_CLOSED, digest.name, waiting.period, waiting.reason)
    return Finding(what, Severity.ERROR, facts, at)


def _missed(conn: Connection, digest: Digest, at: int) -> Iterator[Finding]:
    first_used = attention.first_used(conn, digest.name)
    if first_used is None:
        return
    now, since = as_datetime(at), as_datetime(first_used)
    ready = attention.ready_periods(conn, digest.name)
    for period in digest.ended_periods(now)[-LATEST_PERIODS:]:
        # What was over before the digest came into use was never to be sent.
        if period.label in ready or not since < digest.window(period)[1] <= now:
            continue
        facts = Facts(
            "The delivery window is over, and no digest was ever made ready for this period.",
            f"digest status --digest {digest.name} --period {period.label}",
        )
        what = Identity(Kind.PERIOD_MISSED, digest.name, period.label, "no_content")
        yield Finding(what, Severity.ERROR, facts, at)
