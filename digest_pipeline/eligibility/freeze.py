"""Freezing a period: select its customers once, seal them, and never select them again."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sqlalchemy import Connection

from digest_pipeline import faults
from digest_pipeline.eligibility.drift import Drift, drift_or_none
from digest_pipeline.eligibility.selection import Exclusion, Selected, select_rows
from digest_pipeline.eligibility.source import Source
from digest_pipeline.eligibility.unsubscribe_links import signer_of
from digest_pipeline.errors import BuildSupersededError, LedgerError
from digest_pipeline.keys import DEFAULT_TENANT
from digest_pipeline.ledger import manifests, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.manifests import Build, Entry, Header
from digest_pipeline.ledger.schema import ManifestState
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

MICROS = 1_000_000
WAIT_FOR_OTHER_BUILD = 900.0


@dataclass(frozen=True, slots=True)
class Frozen:
    """The sealed manifest of a period. ``created``: by this call; otherwise ``drift`` says how the
    source differs from it now (none of that is mailed).
    """

    manifest_ids: tuple[int, ...]
    selected: int
    entries: int
    excluded: dict[str, int]
    created: bool
    drift: Drift | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class _Builds:
    """The open builds of a period, one per tenant, made as tenants turn up in the stream."""

    digest: Digest
    period: Period
    run_id: str
    open: dict[str, Build] = field(default_factory=dict)

    def of(self, conn: Connection, tenant: str) -> Build:
        if tenant not in self.open:
            build = manifests.begin_build(conn, header(self.digest, self.period, tenant, self.run_id))
            if build is None:
                raise BuildSupersededError("another run sealed this period meanwhile")
            self.open[tenant] = build
        return self.open[tenant]


def freeze(ledger: Ledger, source: Source, digest: Digest, period: Period, run_id: str) -> Frozen:
    """Return the sealed manifest of a period, building it if there is none.

    Bounded memory whatever the number of customers. Killed half-way, nothing it wrote counts: the
    next call starts again under a new build token. Two calls at once: one builds, the other waits and
    returns the same manifest. Raises SourceError; LedgerError when the other build does not end; SpecError,
    before anything is written, for unsubscribe links that nothing can sign.
    """
    began = time.monotonic()
    if found := _sealed(ledger, digest, period):
        return _with_drift(ledger, source, digest, period, found)
    signer_of(digest.content.unsubscribe_url)
    try:
        _build(ledger, source, digest, period, run_id)
    except BuildSupersededError:
        found = _wait_for_other(ledger, digest, period)
        return _with_drift(ledger, source, digest, period, found)
    faults.reach(faults.Point.MANIFEST_SEALED)
    sealed = _sealed(ledger, digest, period)
    assert sealed is not None
    return Frozen(
        sealed.manifest_ids,
        sealed.selected,
        sealed.entries,
        sealed.excluded,
        created=True,
        seconds=time.monotonic() - began,
    )


def header(digest: Digest, period: Period, tenant: str, run_id: str) -> Header:
    """Return what is fixed about a manifest before its first row."""
    opens, closes = digest.window(period)
    return Header(
        digest=digest.name,
        period=period.label,
        tenant=tenant,
        time_zone=digest.time_zone,
        period_start_at=int(period.start.timestamp() * MICROS),
        period_end_at=int(period.end.timestamp() * MICROS),
        window_opens_at=int(opens.timestamp() * MICROS),
        window_closes_at=int(closes.timestamp() * MICROS),
        run_id=run_id,
    )


def _build(ledger: Ledger, source: Source, digest: Digest, period: Period, run_id: str) -> None:
    builds = _Builds(digest, period, run_id)
    _seal_what_lost(ledger, builds)
    with ledger.write() as conn:
        # Every manifest that an earlier build left open is taken over, also of tenants that the
        # source no longer names: one seal then covers them all.
        left = {row.tenant for row in manifests.find(conn, digest.name, period.label)}
        for tenant in sorted(left | ({digest.single_tenant} if digest.single_tenant else set())):
            builds.of(conn, tenant)
    with source.snapshot() as snapshot:
        for rows in snapshot.customers(digest.customers, period):
            with ledger.write() as conn:
                _write_page(conn, builds, rows)
    with ledger.write() as conn:
        _take_over_the_rest(conn, builds)
    ledger.transact(lambda conn: manifests.seal(conn, list(builds.open.values())))


def _seal_what_lost(ledger: Ledger, builds: _Builds) -> None:
    """Where the period is sealed but for manifests of a build that lost, seal those: of nobody."""
    with ledger.write() as conn:
        rows = manifests.find(conn, builds.digest.name, builds.period.label)
        if all(row.state == ManifestState.BUILDING for row in rows):
            return
        lost = [builds.of(conn, row.tenant) for row in rows if row.state == ManifestState.BUILDING]
        manifests.seal(conn, lost)
    raise BuildSupersededError("another run sealed this period meanwhile")


def _take_over_the_rest(conn: Connection, builds: _Builds) -> None:
    """Seal every tenant's manifest with ours, or the period would never be sealed as a whole.

    Another build may have begun one meanwhile for a tenant that our snapshot does not name. A
    period without any customer has a manifest, too: of nobody.
    """
    found = {row.tenant for row in manifests.find(conn, builds.digest.name, builds.period.label)}
    for tenant in sorted(found | (set() if builds.open else {DEFAULT_TENANT})):
        builds.of(conn, tenant)


def _write_page(conn: Connection, builds: _Builds, rows: object) -> None:
    entries: dict[str, list[Entry]] = defaultdict(list)
    excluded: dict[str, list[tuple[str, str]]] = defaultdict(list)
    selected: Counter[str] = Counter()
    for decided in select_rows(builds.digest, builds.period.label, rows):  # type: ignore[arg-type]
        selected[decided.tenant] += 1
        match decided:
            case Selected(tenant=tenant, entry=entry):
                entries[tenant].append(entry)
            case Exclusion(tenant=tenant, customer_id=customer, reason=reason):
                excluded[tenant].append((customer, reason))
    # In tenant order: two builds that lock several headers never wait for each other in a circle.
    for tenant, count in sorted(selected.items()):
        build = builds.of(conn, tenant)
        repeated = manifests.add_entries(conn, build, entries[tenant], count)
        twice = [(entry.customer_id, "duplicate_customer") for entry in repeated]
        manifests.add_exclusions(conn, build, excluded[tenant] + twice)


def _sealed(ledger: Ledger, digest: Digest, period: Period) -> Frozen | None:
    with ledger.read() as conn:
        rows = manifests.find(conn, digest.name, period.label)
    if not rows or any(row.state == ManifestState.BUILDING for row in rows):
        return None
    excluded: Counter[str] = Counter()
    for row in rows:
        excluded.update(reads.as_counts(row.excluded))
    return Frozen(
        tuple(row.id for row in rows),
        sum(row.selected for row in rows),
        sum(row.entries for row in rows),
        dict(excluded),
        created=False,
    )


def _with_drift(ledger: Ledger, source: Source, digest: Digest, period: Period, found: Frozen) -> Frozen:
    drift = drift_or_none(ledger, source, digest, period, found.manifest_ids)
    return Frozen(
        found.manifest_ids, found.selected, found.entries, found.excluded, created=False, drift=drift
    )


def _wait_for_other(ledger: Ledger, digest: Digest, period: Period) -> Frozen:
    deadline = time.monotonic() + WAIT_FOR_OTHER_BUILD
    while time.monotonic() < deadline:
        if found := _sealed(ledger, digest, period):
            return found
        time.sleep(0.2)
    raise LedgerError(
        f"another run builds the manifest of {digest.name} {period.label} and has not sealed it in "
        f"{WAIT_FOR_OTHER_BUILD / 60:.0f} minutes; if it is dead, start this one again"
    )
