"""Builds in child processes: frozen or composed in small pages, so that they can be killed in between."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from digest_pipeline.eligibility import compose as composing
from digest_pipeline.eligibility import source as reading
from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.spec_loading import load_file
from digest_pipeline_tests.harness.ledgers import PERIOD, source_url


def freeze_it(url: str, folder: str, run_id: str, rows_at_once: int) -> dict[str, Any]:
    """Freeze the tiny digest of ``folder`` in pages of ``rows_at_once``; return what came of it."""
    reading.ROWS_AT_ONCE = rows_at_once
    digest = load_file(Path(folder) / "tiny_digest.yaml")
    with Ledger(url) as ledger, Source(source_url(Path(folder))) as source:
        frozen = freeze(ledger, source, digest, PERIOD, run_id)
    return {"ids": list(frozen.manifest_ids), "created": frozen.created, "entries": frozen.entries}


def compose_it(url: str, folder: str, ids: list[int], run_id: str, page: int) -> dict[str, Any]:
    """Compose the content of the tiny digest of ``folder`` in pages; return what came of it."""
    composing.PAGE = page
    digest = load_file(Path(folder) / "tiny_digest.yaml")
    with Ledger(url) as ledger, Source(source_url(Path(folder))) as source:
        report = compose(ledger, source, digest, PERIOD, ids, run_id)
    return {"composed": report.composed, "created": report.created}


def memory_of_freezing(url: str, folder: str) -> int:
    """Freeze with the real page size; return this process's peak memory in bytes."""
    freeze_it(url, folder, "run-1", reading.ROWS_AT_ONCE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
