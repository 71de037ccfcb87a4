"""The send plan of a run: which manifests, through which gateway."""

from __future__ import annotations

from digest_pipeline.defs.resources import Installation
from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.errors import InputError
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest


def send_plan(
    installation: Installation, digest: Digest, period: Period, run_id: str, sender: str
) -> SendPlan:
    """Return the plan for one period. Raises InputError when it has no manifest yet."""
    with installation.ledger.read() as conn:
        ids = reads.manifest_ids(conn, digest.name, period.label)
    if not ids:
        raise InputError(
            f"{digest.name} {period.label} has no manifest: materialise eligible_customers and digest_rows first"
        )
    settings = installation.settings
    witness = Witness(settings.home, installation.ledger.describe())
    return SendPlan(digest, ids, installation.gateway(digest), run_id, sender, settings.environment, witness)
