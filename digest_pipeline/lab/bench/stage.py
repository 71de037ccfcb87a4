"""What the benchmarks work on: a digest whose own limits never hold it up, and ledgers full of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any

from digest_pipeline.content.message import pack
from digest_pipeline.content.templates import load_template
from digest_pipeline.eligibility.compose import make_renderer, render_inputs
from digest_pipeline.eligibility.freeze import header
from digest_pipeline.eligibility.selection import recipient_hash
from digest_pipeline.keys import DEFAULT_TENANT, operation_key
from digest_pipeline.ledger import manifests
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.manifests import Composed, Entry
from digest_pipeline.periods import Period
from digest_pipeline.settings import PACKAGED_SPECS
from digest_pipeline.spec import DeliveryWindow, Digest, Rate, Sending
from digest_pipeline.spec_loading import load_folder

PAGE = 5_000
DIFFERENT_MESSAGES = 500
RUN = "bench"

Packed = tuple[bytes, str]


def bench_digest(concurrency: int = 50) -> Digest:
    """Return the packaged digest, sent as fast as the provider takes it, in a window that stays open."""
    return load_folder(PACKAGED_SPECS)["customer_digest"].model_copy(
        update={
            "last_period": None,
            "rate": Rate(per_second=100_000, burst=100_000),
            "sending": Sending(concurrency=concurrency),
            "delivery_window": DeliveryWindow(closes_after_hours=24 * 36_500),
        }
    )


def packed_messages(digest: Digest, period: Period) -> list[Packed]:
    """Return some hundred rendered digests, each as the ledger stores one."""
    template = load_template(digest.content.template)
    renderer = make_renderer(digest, period, template, render_inputs(digest, template))
    return [
        pack(
            renderer.render(
                _key(digest, period, number), {"name": f"Reader {number}"}, _items(period, number)
            )
        )
        for number in range(DIFFERENT_MESSAGES)
    ]


def fill(ledger: Ledger, digest: Digest, period: Period, packed: Sequence[Packed], count: int) -> int:
    """Freeze ``count`` customers with messages dealt out in turn, sealed and due now; return the manifest."""
    build = ledger.transact(
        lambda conn: manifests.begin_build(conn, header(digest, period, DEFAULT_TENANT, RUN))
    )
    assert build is not None, "every round has a period of its own"
    for numbers in _pages(count):
        with ledger.write() as conn:
            manifests.add_entries(conn, build, [_entry(digest, period, n) for n in numbers], len(numbers))
    ledger.transact(lambda conn: manifests.seal(conn, [build]))
    template = load_template(digest.content.template)
    content = ledger.transact(
        lambda conn: manifests.begin_content(conn, build.manifest_id, RUN, template.hash, template.text, "{}")
    )
    assert content is not None
    for numbers in _pages(count):
        page = [_composed(digest, period, n, packed[n % len(packed)]) for n in numbers]
        with ledger.write() as conn:
            manifests.add_content(conn, content, page)
    ledger.transact(lambda conn: manifests.seal_content(conn, [content]))
    return build.manifest_id


def _pages(count: int) -> Iterator[range]:
    for first in range(0, count, PAGE):
        yield range(first, min(first + PAGE, count))


def _key(digest: Digest, period: Period, number: int) -> str:
    return operation_key(digest.name, period.label, DEFAULT_TENANT, f"customer-{number}")


def _entry(digest: Digest, period: Period, number: int) -> Entry:
    recipient = f"reader.{number}@example.com"
    hashed = recipient_hash(recipient)
    return Entry(
        _key(digest, period, number), f"customer-{number}", recipient, hashed, hashed, f"Reader {number}"
    )


def _composed(digest: Digest, period: Period, number: int, packed: Packed) -> Composed:
    hashed = recipient_hash(f"reader.{number}@example.com")
    return Composed(number + 1, _key(digest, period, number), hashed, *packed)


def _items(period: Period, number: int) -> list[dict[str, Any]]:
    return [
        {
            "ordered_on": bought_on(period.first_day, n),
            "cds": n + 1,
            "dollars": 11.77 * (n + 1),
            "total_orders": 12,
            "total_cds": 31,
            "total_dollars": 412.5,
        }
        for n in range(1 + number % 4)
    ]


def bought_on(first_day: date, number: int) -> date:
    """Return a day of the week that begins on ``first_day``."""
    return first_day + timedelta(days=number % 7)
