"""Composing a period's content: render each customer's message once, and seal the bytes."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import Row

from digest_pipeline.content.message import pack
from digest_pipeline.content.rendering import Renderer, RenderInputs, header_date, library_versions
from digest_pipeline.content.templates import FrozenTemplate, load_template
from digest_pipeline.eligibility.dating import require_dated_inside
from digest_pipeline.eligibility.source import Snapshot, Source
from digest_pipeline.eligibility.unsubscribe_links import signer_of
from digest_pipeline.errors import BuildSupersededError, LedgerError
from digest_pipeline.ledger import manifests, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.manifests import Composed, ContentBuild
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest
from digest_pipeline.states import SuppressionReason

PAGE = 500
WAIT_FOR_OTHER_BUILD = 900.0


@dataclass(frozen=True, slots=True)
class ContentReport:
    """The sealed content of a period. ``created``: by this call."""

    composed: int
    empty: int
    bytes: int
    created: bool
    seconds: float = 0.0


def compose(
    ledger: Ledger, source: Source, digest: Digest, period: Period, manifest_ids: Sequence[int], run_id: str
) -> ContentReport:
    """Return the sealed content of a period's manifests, rendering it if there is none.

    Every attempt, whenever it is made, sends these bytes. A customer without rows becomes
    ``suppressed: empty``. Killed half-way, the next call starts again from nothing; sealed content is
    never rendered again. Raises TemplateError for a template that does not fit the rows, before
    anything could be sent.
    """
    began = time.monotonic()
    if done := _already_sealed(ledger, manifest_ids):
        # Neither the template nor the source may still be needed to go on with a sealed period.
        return done
    template = load_template(digest.content.template)
    try:
        built = _build(ledger, source, digest, period, template, manifest_ids, run_id)
    except BuildSupersededError:
        built = []
        _wait_for_other(ledger, digest, period, manifest_ids)
    if not built and (done := _already_sealed(ledger, manifest_ids)):
        return done
    return ContentReport(
        sum(b.composed for b in built),
        sum(b.empty for b in built),
        sum(b.bytes for b in built),
        created=True,
        seconds=time.monotonic() - began,
    )


def _already_sealed(ledger: Ledger, manifest_ids: Sequence[int]) -> ContentReport | None:
    with ledger.read() as conn:
        if not reads.content_is_sealed(conn, manifest_ids):
            return None
        composed, empty = reads.content_counts(conn, manifest_ids)
    return ContentReport(composed, empty, 0, created=False)


def _build(
    ledger: Ledger,
    source: Source,
    digest: Digest,
    period: Period,
    template: FrozenTemplate,
    manifest_ids: Sequence[int],
    run_id: str,
) -> list[ContentBuild]:
    inputs = render_inputs(digest, template)
    renderer = make_renderer(digest, period, template, inputs)
    stored = json.dumps(inputs.to_dict(), sort_keys=True)
    built: list[ContentBuild] = []
    with source.snapshot() as snapshot:
        for manifest_id in manifest_ids:
            build = ledger.transact(
                partial(
                    manifests.begin_content,
                    manifest_id=manifest_id,
                    run_id=run_id,
                    template_hash=template.hash,
                    template_text=template.text,
                    inputs=stored,
                )
            )
            if build is not None:
                _fill(ledger, snapshot, digest, period, renderer, build)
                built.append(build)
    merge = digest.shared_address == "merge"
    ledger.transact(lambda conn: manifests.seal_content(conn, built, merge_shared_addresses=merge))
    return built


def render_inputs(digest: Digest, template: FrozenTemplate) -> RenderInputs:
    """Return everything but the rows that the bytes will depend on, fixed now."""
    return RenderInputs(
        template_hash=template.hash,
        sender=digest.content.sender,
        reply_to=digest.content.reply_to,
        list_id=digest.content.list_id,
        unsubscribe_url=digest.content.unsubscribe_url,
        feedback_id=digest.content.feedback_id,
        date=header_date(datetime.now(UTC).replace(microsecond=0)),
        boundary_seed=uuid.uuid4().hex,
        library_versions=library_versions(),
    )


def make_renderer(digest: Digest, period: Period, template: FrozenTemplate, inputs: RenderInputs) -> Renderer:
    """Return the renderer of one period. Raises SpecError for links that need a key where there is none."""
    return Renderer(
        template,
        inputs,
        digest.title or digest.name,
        period.label,
        period.first_day,
        period.last_day,
        sign=signer_of(inputs.unsubscribe_url),
    )


def _fill(
    ledger: Ledger,
    snapshot: Snapshot,
    digest: Digest,
    period: Period,
    renderer: Renderer,
    build: ContentBuild,
) -> None:
    while True:
        with ledger.read() as conn:
            entries = manifests.entries_after(conn, build.manifest_id, build.last_ordinal, PAGE)
        if not entries:
            return
        customers = [entry.customer_id for entry in entries]
        tenant = None if digest.single_tenant else build.tenant
        rows = snapshot.content(digest.content, period, tenant, customers)
        require_dated_inside(digest, period, rows)
        page = [compose_one(renderer, entry, rows.get(entry.customer_id, [])) for entry in entries]
        with ledger.write() as conn:
            manifests.add_content(conn, build, page)


def compose_one(renderer: Renderer, entry: Row[Any], items: Sequence[dict[str, Any]]) -> Composed:
    """Return one customer's content, or that there is nothing to tell them, or nobody to tell."""
    if entry.recipient is None:
        return Composed(
            entry.ordinal, entry.operation_key, entry.recipient_hash, None, None, SuppressionReason.ERASED
        )
    if not items:
        return Composed(
            entry.ordinal, entry.operation_key, entry.recipient_hash, None, None, SuppressionReason.EMPTY
        )
    customer = {"customer_id": entry.customer_id, "name": entry.name or ""}
    document, payload_hash = pack(renderer.render(entry.operation_key, customer, items))
    return Composed(entry.ordinal, entry.operation_key, entry.recipient_hash, document, payload_hash)


def _wait_for_other(ledger: Ledger, digest: Digest, period: Period, manifest_ids: Sequence[int]) -> None:
    deadline = time.monotonic() + WAIT_FOR_OTHER_BUILD
    while time.monotonic() < deadline:
        with ledger.read() as conn:
            if reads.content_is_sealed(conn, manifest_ids):
                return
        time.sleep(0.2)
    raise LedgerError(
        f"another run composes the content of {digest.name} {period.label} and has not sealed it in "
        f"{WAIT_FOR_OTHER_BUILD / 60:.0f} minutes; if it is dead, start this one again"
    )
