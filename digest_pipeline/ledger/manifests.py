"""Building a manifest and its content: page by page, under a token, sealed once.

Every page locks the header and checks that this build still owns it. A build that was killed is
never resumed: the next one takes the header over under a new token and starts from nothing, and the
old one, should it still be alive, can write no further row.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from digest_pipeline import faults
from digest_pipeline.errors import BuildSupersededError
from digest_pipeline.keys import KEY_VERSION
from digest_pipeline.ledger import restored, transitions
from digest_pipeline.ledger.dialects import bulk_insert, insert_new, ledger_now, locked, refresh_statistics
from digest_pipeline.ledger.schema import (
    ManifestState,
    content,
    delivery,
    manifest,
    manifest_entry,
    manifest_exclusion,
    template,
)
from digest_pipeline.states import State, SuppressionReason

_ENTRY_COLUMNS = (
    "manifest_id",
    "ordinal",
    "operation_key",
    "customer_id",
    "recipient",
    "recipient_hash",
    "address_hash",
    "name",
)


@dataclass(frozen=True, slots=True)
class Header:
    """What is fixed about a manifest before its first row. Instants in microseconds."""

    digest: str
    period: str
    tenant: str
    time_zone: str
    period_start_at: int
    period_end_at: int
    window_opens_at: int
    window_closes_at: int
    run_id: str


@dataclass(slots=True)
class Build:
    """One build of one manifest: its token, and what it has written so far."""

    manifest_id: int
    token: str
    next_ordinal: int = 1
    next_position: int = 1
    entries: int = 0
    selected: int = 0
    excluded: dict[str, int] = field(default_factory=dict)
    checksum: Any = field(default_factory=hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Entry:
    """One customer of a manifest, before it has an ordinal."""

    operation_key: str
    customer_id: str
    recipient: str
    recipient_hash: str
    address_hash: str
    name: str


def find(conn: Connection, digest: str, period: str) -> list[Row[Any]]:
    """Return the manifest headers of a period, one per tenant, in tenant order."""
    query = select(manifest).where(manifest.c.digest == digest, manifest.c.period == period)
    return list(conn.execute(query.order_by(manifest.c.tenant)))


def begin_build(conn: Connection, header: Header) -> Build | None:
    """Take over a manifest for building, from nothing; None when it is sealed or archived already.

    What an earlier, unfinished build wrote is removed in the same transaction.
    """
    token = uuid.uuid4().hex
    where = (
        (manifest.c.digest == header.digest)
        & (manifest.c.period == header.period)
        & (manifest.c.tenant == header.tenant)
    )
    found = conn.execute(locked(conn, select(manifest).where(where))).one_or_none()
    values = {
        "time_zone": header.time_zone,
        "period_start_at": header.period_start_at,
        "period_end_at": header.period_end_at,
        "window_opens_at": header.window_opens_at,
        "window_closes_at": header.window_closes_at,
        "freezing_run_id": header.run_id,
        "build_token": token,
        "key_version": KEY_VERSION,
        "selected_at": ledger_now(),
        "in_doubt_from_at": restored.doubt_for_new(conn, header.window_opens_at),
        "doubted_at": None,
    }
    if found is None:
        identity = {"digest": header.digest, "period": header.period, "tenant": header.tenant}
        created = insert_new(conn, manifest, {**identity, **values, "state": ManifestState.BUILDING})
        if created:
            return Build(conn.execute(select(manifest.c.id).where(where)).scalar_one(), token)
        # Another build of the same period began between our look and our insert: take that one over.
        found = conn.execute(locked(conn, select(manifest).where(where))).one()
    if found.state != ManifestState.BUILDING:
        return None
    conn.execute(delete(manifest_entry).where(manifest_entry.c.manifest_id == found.id))
    conn.execute(delete(manifest_exclusion).where(manifest_exclusion.c.manifest_id == found.id))
    conn.execute(update(manifest).where(manifest.c.id == found.id).values(**values))
    return Build(found.id, token)


def add_entries(conn: Connection, build: Build, page: Sequence[Entry], selected: int) -> list[Entry]:
    """Write one page; return the entries whose customer is in the manifest already (not written).

    ``build`` is updated for the page, so call it outside any retry: a page that failed ends the
    build. Raises BuildSupersededError when another build took over.
    """
    _require_owner(conn, build)
    faults.reach(faults.Point.MANIFEST_BUILDING)
    rows = [
        (
            build.manifest_id,
            build.next_ordinal + index,
            entry.operation_key,
            entry.customer_id,
            entry.recipient,
            entry.recipient_hash,
            entry.address_hash,
            entry.name,
        )
        for index, entry in enumerate(page)
    ]
    repeated = _insert_entries(conn, rows)
    for row in rows:
        if row[1] not in repeated:
            build.checksum.update(checksum_line(row[1], row[2], row[5]))
    build.next_ordinal += len(rows)
    build.entries += len(rows) - len(repeated)
    build.selected += selected
    return [page[ordinal - rows[0][1]] for ordinal in sorted(repeated)]


def _insert_entries(conn: Connection, rows: list[tuple[Any, ...]]) -> set[int]:
    """Insert entries; return the ordinals of those whose operation key exists already."""
    try:
        with conn.begin_nested():
            bulk_insert(conn, manifest_entry, _ENTRY_COLUMNS, rows)
        return set()
    except IntegrityError:
        # A customer came twice, pages apart: rare, so only such a page pays for finding out which.
        return _insert_new_entries(conn, rows)


def _insert_new_entries(conn: Connection, rows: list[tuple[Any, ...]]) -> set[int]:
    return {
        row[1]
        for row in rows
        if not insert_new(conn, manifest_entry, dict(zip(_ENTRY_COLUMNS, row, strict=True)))
    }


def add_exclusions(conn: Connection, build: Build, excluded: Sequence[tuple[str, str]]) -> None:
    """Record (customer, reason) of rows that were selected and are not in the manifest, and why."""
    rows = [
        (build.manifest_id, build.next_position + index, customer, reason)
        for index, (customer, reason) in enumerate(excluded)
    ]
    bulk_insert(conn, manifest_exclusion, ("manifest_id", "position", "customer_id", "reason"), rows)
    build.next_position += len(rows)
    for _, reason in excluded:
        build.excluded[reason] = build.excluded.get(reason, 0) + 1


def seal(conn: Connection, builds: Sequence[Build]) -> None:
    """Seal every manifest of a period at once: all of its tenants or none."""
    for build in sorted(builds, key=lambda build: build.manifest_id):
        _require_owner(conn, build)
        conn.execute(
            update(manifest)
            .where(manifest.c.id == build.manifest_id)
            .values(
                state=ManifestState.SEALED,
                selected=build.selected,
                entries=build.entries,
                excluded=json.dumps(build.excluded, sort_keys=True),
                checksum=build.checksum.hexdigest(),
                sealed_at=ledger_now(),
            )
        )


def checksum_line(ordinal: int, operation_key: str, *hashes: str | None) -> bytes:
    """Return what one entry adds to a manifest's checksum."""
    return "\x1f".join((str(ordinal), operation_key, *(h or "" for h in hashes), "\n")).encode()


def _require_owner(conn: Connection, build: Build) -> None:
    query = select(manifest.c.id).where(
        manifest.c.id == build.manifest_id,
        manifest.c.state == ManifestState.BUILDING,
        manifest.c.build_token == build.token,
    )
    if conn.execute(locked(conn, query)).first() is None:
        raise BuildSupersededError("another run builds this manifest now; this one has stopped writing")


@dataclass(slots=True)
class ContentBuild:
    """One build of a sealed manifest's content."""

    manifest_id: int
    tenant: str
    token: str
    due_at: int
    last_ordinal: int = 0
    composed: int = 0
    empty: int = 0
    bytes: int = 0
    checksum: Any = field(default_factory=hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Composed:
    """One entry's content. ``document`` None: not to be sent, ``suppression`` or a failure says why."""

    ordinal: int
    operation_key: str
    recipient_hash: str
    document: bytes | None
    payload_hash: str | None
    suppression: str | None = None


def begin_content(
    conn: Connection, manifest_id: int, run_id: str, template_hash: str, template_text: str, inputs: str
) -> ContentBuild | None:
    """Take over the content of a sealed manifest, from nothing; None when its content is sealed.

    The template and every other input of the bytes are frozen with it. A later build of content
    that was never sealed brings its own: nothing of the earlier one can have been sent.
    """
    found = conn.execute(locked(conn, select(manifest).where(manifest.c.id == manifest_id))).one()
    if found.content_sealed_at is not None:
        return None
    token = uuid.uuid4().hex
    conn.execute(delete(content).where(content.c.manifest_id == manifest_id))
    conn.execute(delete(delivery).where(delivery.c.manifest_id == manifest_id))
    # Several periods that are composed at once bring the same template.
    insert_new(conn, template, {"hash": template_hash, "text": template_text})
    conn.execute(
        update(manifest)
        .where(manifest.c.id == manifest_id)
        .values(
            content_build_token=token,
            content_run_id=run_id,
            template_hash=template_hash,
            render_inputs=inputs,
        )
    )
    return ContentBuild(manifest_id, found.tenant, token, found.window_opens_at)


def entries_after(conn: Connection, manifest_id: int, ordinal: int, limit: int) -> list[Row[Any]]:
    """Return one page of a manifest's entries in ordinal order, by key, never by offset."""
    query = (
        select(manifest_entry)
        .where(manifest_entry.c.manifest_id == manifest_id, manifest_entry.c.ordinal > ordinal)
        .order_by(manifest_entry.c.ordinal)
        .limit(limit)
    )
    return list(conn.execute(query))


def add_content(conn: Connection, build: ContentBuild, page: Sequence[Composed]) -> None:
    """Write one page of content and its deliveries. Raises BuildSupersededError."""
    _require_content_owner(conn, build)
    faults.reach(faults.Point.CONTENT_BUILDING)
    m = build.manifest_id
    written = [(m, c.ordinal, c.document) for c in page if c.document is not None]
    bulk_insert(conn, content, ("manifest_id", "ordinal", "document"), written)
    now = conn.execute(select(ledger_now())).scalar_one()
    columns = ("manifest_id", "ordinal", "state", "due_at", "payload_hash", "suppression", "finished_at")
    rows = [
        (m, c.ordinal, "pending", build.due_at, c.payload_hash, None, None)
        if c.suppression is None
        else (m, c.ordinal, "suppressed", None, c.payload_hash, c.suppression, now)
        for c in page
    ]
    bulk_insert(conn, delivery, columns, rows)
    for c in page:
        build.checksum.update(checksum_line(c.ordinal, c.operation_key, c.recipient_hash, c.payload_hash))
        build.bytes += len(c.document or b"")
    build.composed += len(written)
    build.empty += sum(c.suppression == "empty" for c in page)
    build.last_ordinal = page[-1].ordinal


def seal_content(
    conn: Connection, builds: Sequence[ContentBuild], *, merge_shared_addresses: bool = False
) -> None:
    """Seal the content of every manifest of a period; all rows are enqueued from this instant.

    ``merge_shared_addresses``: of several customers with one address the first is sent to, the others
    are ``suppressed: shared_address``, and visible as that.
    """
    for build in builds:
        _require_content_owner(conn, build)
        if merge_shared_addresses:
            repeated = _repeated_addresses(conn, build.manifest_id)
            transitions.suppress(
                conn, build.manifest_id, dict.fromkeys(repeated, SuppressionReason.SHARED_ADDRESS)
            )
        conn.execute(
            update(manifest)
            .where(manifest.c.id == build.manifest_id)
            .values(content_checksum=build.checksum.hexdigest(), content_sealed_at=ledger_now())
        )
    refresh_statistics(conn, manifest_entry, content, delivery)


def _repeated_addresses(conn: Connection, manifest_id: int) -> list[int]:
    place = func.row_number().over(
        partition_by=manifest_entry.c.address_hash, order_by=manifest_entry.c.ordinal
    )
    ranked = (
        select(delivery.c.ordinal, place.label("place"))
        .join(
            manifest_entry,
            (manifest_entry.c.manifest_id == delivery.c.manifest_id)
            & (manifest_entry.c.ordinal == delivery.c.ordinal),
        )
        .where(delivery.c.manifest_id == manifest_id, delivery.c.state == State.PENDING)
        .subquery()
    )
    return list(conn.execute(select(ranked.c.ordinal).where(ranked.c.place > 1)).scalars())


def _require_content_owner(conn: Connection, build: ContentBuild) -> None:
    query = select(manifest.c.id).where(
        manifest.c.id == build.manifest_id,
        manifest.c.state == ManifestState.SEALED,
        manifest.c.content_sealed_at.is_(None),
        manifest.c.content_build_token == build.token,
    )
    if conn.execute(locked(conn, query)).first() is None:
        raise BuildSupersededError("another run builds this content now; this one has stopped writing")
