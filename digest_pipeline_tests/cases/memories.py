"""Work in child processes whose memory is looked at. Imports little, so that they start alike."""

from __future__ import annotations

import resource
from pathlib import Path

from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.delivery.run import deliver, prepare
from digest_pipeline.installation import make_gateway
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.spec_loading import load_file
from digest_pipeline.telemetry import configure_logging


def memory_of_sending(url: str, folder: str, label: str) -> list[int]:
    """Send a frozen period; return how many were accepted, and this process's peak memory in bytes."""
    configure_logging("WARNING")
    digest = load_file(Path(folder) / "tiny_digest.yaml")
    with Ledger(url) as ledger:
        with ledger.read() as conn:
            ids = reads.manifest_ids(conn, digest.name, label)
        plan = SendPlan(digest, ids, make_gateway(digest), "run-1", "s1")
        ledger.transact(lambda conn: prepare(conn, plan))
        done = deliver(ledger, plan)
    return [done.accepted, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]
