"""The demo's judge: the provider's own store against the ledger, key by key."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from digest_pipeline.lab.sandbox.oracle import Oracle
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest
from digest_pipeline.states import REACHED, State


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the provider's store says of a period, in keys.

    ``duplicates``: accepted more than once. ``lost``: the ledger says sent and the store lacks it, or a
    customer without a visible state. ``unrecorded``: the store has it and the ledger does not say sent.
    ``unknown``: the ledger says that it does not know; some of them are unrecorded too (``in_doubt``),
    until evidence settles it.
    """

    duplicates: int
    lost: int
    unrecorded: int
    unknown: int
    in_doubt: int

    @property
    def agrees(self) -> bool:
        """Whether store and ledger tell the same of every customer, but for those whom it calls unknown."""
        return self.duplicates == self.lost == self.unrecorded - self.in_doubt == 0


def judge(oracle: Oracle, ledger: Ledger, digest: Digest, period: Period) -> Judgement:
    """Compare what the provider really accepted with what the ledger says of a period."""
    prefix = f"{quote(digest.name, safe='')}:{period.label}:"
    accepted = {key for key in oracle.accepted_keys() if key.startswith(prefix)}
    duplicates = sum(one.operation_key.startswith(prefix) for one in oracle.duplicates())
    visible = {str(state) for state in State}
    lost = unrecorded = unknown = in_doubt = 0
    with ledger.read() as conn:
        ids = reads.manifest_ids(conn, digest.name, period.label)
        for page in reads.entries(conn, ids):
            for row in page:
                sent, stored = row["state"] in REACHED, row["operation_key"] in accepted
                lost += (sent and not stored) or row["state"] not in visible
                unrecorded += stored and not sent
                unknown += row["state"] == State.UNKNOWN
                in_doubt += stored and row["state"] == State.UNKNOWN
    return Judgement(duplicates, lost, unrecorded, unknown, in_doubt)
