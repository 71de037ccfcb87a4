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
    customer without a visible state. ``unrecorded``: the store has it and the ledger does not say sent
    (an unknown is that, until evidence settles it).
    """

    duplicates: int
    lost: int
    unrecorded: int

    @property
    def agrees(self) -> bool:
        """Whether store and ledger tell the same of every customer."""
        return self.duplicates == 0 and self.lost == 0 and self.unrecorded == 0


def judge(oracle: Oracle, ledger: Ledger, digest: Digest, period: Period) -> Judgement:
    """Compare what the sandbox really accepted with what the ledger says of a period."""
    prefix = f"{quote(digest.name, safe='')}:{period.label}:"
    accepted = {key for key in oracle.accepted_keys() if key.startswith(prefix)}
    duplicates = sum(one.operation_key.startswith(prefix) for one in oracle.duplicates())
    visible = {str(state) for state in State}
    lost = unrecorded = 0
    with ledger.read() as conn:
        ids = reads.manifest_ids(conn, digest.name, period.label)
        for page in reads.entries(conn, ids):
            for row in page:
                sent, stored = row["state"] in REACHED, row["operation_key"] in accepted
                lost += (sent and not stored) or row["state"] not in visible
                unrecorded += stored and not sent
    return Judgement(duplicates, lost, unrecorded)
