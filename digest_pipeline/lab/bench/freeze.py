"""How long freezing a period takes, against the bare INSERT ... SELECT of the same rows in one server.

The bare statement has everything at hand that ours has to carry out of one database and into
another: it stays in the server. Keys, hashes, indexes and constraints are the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import create_engine, text

from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze, header
from digest_pipeline.eligibility.source import Source
from digest_pipeline.keys import DEFAULT_TENANT
from digest_pipeline.lab.bench.contestants import Ran, in_child, measured
from digest_pipeline.lab.bench.send import HONEST
from digest_pipeline.lab.bench.stage import RUN, bench_digest
from digest_pipeline.lab.postgres import running_postgres
from digest_pipeline.ledger import manifests, migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

RATIO_AIM, MEMORY_AIM_MB = 3.0, 300.0
MOST_COMPOSED = 5_000

_SOURCE = """
CREATE TABLE customers AS
SELECT n AS number, 'customer-' || n AS id, 'reader.' || n || '@example.com' AS email, 'Reader ' || n AS name
FROM generate_series(1, CAST(:customers AS bigint)) AS n
"""
_CUSTOMERS = """
SELECT id AS customer_id, email AS recipient, name FROM customers
WHERE CAST(:period_start AS date) < CAST(:period_end AS date) AND number <= {most}
"""
_CONTENT = """
SELECT id AS customer_id, CAST(:period_start AS date) + n - 1 AS ordered_on, n AS cds, 11.77 * n AS dollars,
       12 AS total_orders, 31 AS total_cds, 412.5 AS total_dollars
FROM customers CROSS JOIN generate_series(1, 1 + CAST(number % 4 AS integer)) AS n WHERE CAST(:period_end AS date) IS NOT NULL
"""
_BARE = """
INSERT INTO manifest_entry
    (manifest_id, ordinal, operation_key, customer_id, recipient, recipient_hash, address_hash, name)
SELECT :manifest, row_number() OVER (), :prefix || id, id, email,
       encode(sha256(convert_to(email, 'UTF8')), 'hex'),
       encode(sha256(convert_to(lower(email), 'UTF8')), 'hex'), name
FROM customers
"""


@dataclass(frozen=True, slots=True)
class FreezeResult:
    """Seconds for the same rows, ours over the bare statement's, and what our process needed.

    ``composed_per_second``: digests rendered, packed and stored, as information.
    """

    customers: int
    seconds: float
    bare_seconds: float
    ratio: float
    ratio_aim: float
    peak_rss_mb: float
    memory_aim_mb: float
    composed_per_second: float
    frozen: int
    ok: bool


def measure(customers: int, tell: Callable[[str], None] = lambda _: None) -> FreezeResult:
    """Freeze that many generated customers, and run the bare statement beside it."""
    with running_postgres(settings=HONEST) as server:
        with server.database() as source, server.database() as ours, server.database() as bare:
            for url in (ours, bare):
                with Ledger(url) as ledger:
                    migrate.upgrade(ledger, RUN)
            for url in (source, bare):
                _generate(url, customers)
            bare_seconds = _insert_bare(bare)
            tell(f"bare INSERT ... SELECT: {bare_seconds:.1f} s")
            ran, frozen = in_child(_freeze, ours, source, customers)
            tell(f"freeze: {ran.seconds:.1f} s")
            composed = in_child(_compose, ours, source, min(customers, MOST_COMPOSED))
    return FreezeResult(
        customers=customers,
        seconds=round(ran.seconds, 2),
        bare_seconds=round(bare_seconds, 2),
        ratio=round(ran.seconds / bare_seconds, 2),
        ratio_aim=RATIO_AIM,
        peak_rss_mb=round(ran.peak_rss_mb, 1),
        memory_aim_mb=MEMORY_AIM_MB,
        composed_per_second=round(composed, 1),
        frozen=frozen,
        ok=frozen == customers,
    )


def to_json(result: FreezeResult) -> dict[str, Any]:
    """Return plain data; ``ok``: every customer is in the manifest, whatever the speed."""
    return {"benchmark": "freeze", "cpus": os.cpu_count(), **asdict(result)}


def _generate(url: str, customers: int) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text(_SOURCE), {"customers": customers})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("VACUUM ANALYZE customers"))
        # What generating wrote must not be flushed on the clock.
        conn.execute(text("CHECKPOINT"))
    engine.dispose()


def _insert_bare(url: str) -> float:
    digest = bench_digest()
    period = digest.first
    with Ledger(url) as ledger:
        build = ledger.transact(
            lambda conn: manifests.begin_build(conn, header(digest, period, DEFAULT_TENANT, RUN))
        )
        assert build is not None
        values = {"manifest": build.manifest_id, "prefix": f"{digest.name}:{period.label}:"}
        began = time.monotonic()
        ledger.transact(lambda conn: conn.execute(text(_BARE), values))
        return time.monotonic() - began


def _freeze(ledger_url: str, source_url: str, customers: int) -> tuple[Ran, int]:
    digest = _digest(customers)
    with Ledger(ledger_url) as ledger, Source(source_url) as source:
        frozen: list[int] = []
        ran = measured(lambda: frozen.append(freeze(ledger, source, digest, digest.first, RUN).entries))
        return ran, frozen[0]


def _compose(ledger_url: str, source_url: str, customers: int) -> float:
    digest = _digest(customers)
    period = digest.first.next()
    with Ledger(ledger_url) as ledger, Source(source_url) as source:
        return _composed_per_second(ledger, source, digest, period)


def _composed_per_second(ledger: Ledger, source: Source, digest: Digest, period: Period) -> float:
    frozen = freeze(ledger, source, digest, period, RUN)
    content = compose(ledger, source, digest, period, frozen.manifest_ids, RUN)
    return content.composed / content.seconds


def _digest(customers: int) -> Digest:
    digest = bench_digest()
    sql = _CUSTOMERS.format(most=customers)
    return digest.model_copy(
        update={
            "customers": digest.customers.model_copy(update={"sql": sql}),
            "content": digest.content.model_copy(update={"sql": _CONTENT}),
        }
    )
