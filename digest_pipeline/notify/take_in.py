"""From what was seen to incidents: opened, counted or closed, each in one short transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import Connection

from digest_pipeline.ledger import incidents, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.incidents import Incident, Seen
from digest_pipeline.notify import log
from digest_pipeline.notify.channels import channels_of
from digest_pipeline.notify.conditions import conditions
from digest_pipeline.notify.incident import CONDITIONS, Facts, Finding
from digest_pipeline.spec import Digest


def take_in(ledger: Ledger, digest: Digest | None, finding: Finding) -> Seen:
    """Open an incident for a failure, or count it as one more of an open one. Safe to repeat."""

    def work(conn: Connection) -> Seen:
        if incidents.count_again(conn, finding.what, finding.at):
            return Seen.COUNTED
        return _open(conn, digest, finding)

    return ledger.transact(work)


def take_in_conditions(ledger: Ledger, digest: Digest) -> list[Finding]:
    """Open what the ledger shows of a digest now, and close what it no longer shows; return what it shows."""

    def work(conn: Connection) -> tuple[list[Finding], list[Incident]]:
        found = list(conditions(conn, digest))
        for finding in found:
            if not incidents.see_again(conn, finding.what, finding.at):
                _open(conn, digest, finding)
        holding = {finding.what for finding in found}
        over = [
            one
            for one in incidents.open_ones(conn, digest.name)
            if one.kind in CONDITIONS and one.identity not in holding
        ]
        return found, over

    with ledger.read() as conn:
        at = reads.now(conn)  # before the question: an answer is no newer than that
    found, over = ledger.transact(work)
    close(ledger, over, at)
    return found


def close_where(
    ledger: Ledger, digest: str, period: str | None, is_well: Callable[[Incident, Facts], bool], at: int
) -> int:
    """Close the open incidents of a period, or of all (None), that are well since ``at``; return how many."""
    with ledger.read() as conn:
        candidates = incidents.open_ones(conn, digest, period)
    return close(ledger, [one for one in candidates if is_well(one, Facts.from_json(one.facts))], at)


def close(ledger: Ledger, over: Iterable[Incident], at: int) -> int:
    """Close these incidents unless something newer was seen of them; return how many it closed."""
    closed = 0
    for one in over:
        what = one.identity
        if ledger.transact(lambda conn, what=what: incidents.close_incident(conn, what, at)):  # type: ignore[misc]
            log.incident_closed(what.kind, what.digest, what.period, what.subject)
            closed += 1
    return closed


def _open(conn: Connection, digest: Digest | None, finding: Finding) -> Seen:
    channels = channels_of(digest, finding.severity)
    return incidents.open_incident(
        conn, finding.what, finding.at, str(finding.severity), finding.facts.to_json(), channels
    )
