"""The ledger against the provider: what one of them has and the other has not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from sqlalchemy import Row

from digest_pipeline.delivery.plan import MICROS, SendPlan
from digest_pipeline.ledger import comparable
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.outcomes import Found
from digest_pipeline.reconciliation.agreement import Agreement, bounds, judge
from digest_pipeline.reconciliation.asking import Reply, ask, take_permits

PAGE = 200
KEPT_KEYS = 20


@dataclass(slots=True)
class Noted:
    """How many deliveries, and the operation keys of the first twenty: ``len`` counts, iteration names."""

    count: int = 0
    keys: list[str] = field(default_factory=list)

    def add(self, key: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.keys) < KEPT_KEYS:
            self.keys.append(key)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys)


@dataclass(slots=True)
class Comparison:
    """What asking the provider told. Every asked key is in one of the first five.

    ``confirmed``: both agree. ``missing_at_provider``: the ledger says sent, the provider lists
    nothing. ``unexpected_at_provider``: the provider has it, the ledger does not say sent.
    ``unanswered``: no readable answer. ``outside_window``: not listed, and too new or too old for
    that to count. ``duplicated``, beside these: listed more than once. ``reason``: why nothing, or
    not everything, was asked.
    """

    confirmed: int = 0
    missing_at_provider: Noted = field(default_factory=Noted)
    unexpected_at_provider: Noted = field(default_factory=Noted)
    unanswered: Noted = field(default_factory=Noted)
    outside_window: int = 0
    duplicated: Noted = field(default_factory=Noted)
    asked: int = 0
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether nothing that was asked contradicts the ledger."""
        return not (self.missing_at_provider or self.unexpected_at_provider or self.duplicated)


async def compare_with_provider(ledger: Ledger, plan: SendPlan, *, sample: int = 200) -> Comparison:
    """Ask the provider about every doubtful delivery and a spread ``sample`` of the sent ones.

    The caller has entered the plan's gateway. Changes nothing; takes permits from the gate that
    sends go through. Where the provider cannot be asked, or not to the end, ``reason`` says why.
    """
    found = Comparison()
    if not plan.gateway.capabilities.look_up:
        found.reason = f"the gateway {plan.gateway.name} cannot be asked by operation key"
        return found
    deadline = time.monotonic() + plan.digest.sending.run_limit_seconds
    for manifest_id in plan.manifest_ids:
        after = 0
        while rows := _doubtful(ledger, plan, manifest_id, after):
            after = rows[-1].ordinal
            if not await _ask_all(ledger, plan, rows, found, deadline):
                return found
    rows = _sample(ledger, plan, sample)
    for start in range(0, len(rows), PAGE):
        if not await _ask_all(ledger, plan, rows[start : start + PAGE], found, deadline):
            return found
    return found


def _doubtful(ledger: Ledger, plan: SendPlan, manifest_id: int, after: int) -> Sequence[Row[Any]]:
    gateway = plan.gateway
    with ledger.read() as conn:
        return comparable.doubtful(conn, manifest_id, after, gateway.name, gateway.account, PAGE)


def _sample(ledger: Ledger, plan: SendPlan, size: int) -> Sequence[Row[Any]]:
    if size <= 0:
        return []
    gateway, (visible, retention) = plan.gateway, bounds(plan.gateway.capabilities)
    with ledger.read() as conn:
        return comparable.spread_sample(
            conn, plan.manifest_ids, gateway.name, gateway.account, visible, retention, size
        )


async def _ask_all(
    ledger: Ledger, plan: SendPlan, rows: Sequence[Row[Any]], found: Comparison, deadline: float
) -> bool:
    """Ask about these, waiting for permits; False when the gate gives none in time."""
    read_at = time.monotonic()
    left = rows
    while left:
        permits = take_permits(ledger, plan, len(left))
        if permits.starts:
            page, left = left[: len(permits.starts)], left[len(permits.starts) :]
            replies = await ask(ledger, plan, [row.operation_key for row in page], permits.starts)
            _note(ledger, plan, list(zip(page, replies, strict=True)), read_at, found)
            continue
        wait = permits.again_in
        if permits.halted is not None:
            found.reason = f"sending is halted ({permits.halted})"
            return False
        if (
            wait is None
            or wait > plan.digest.sending.in_run_wait_seconds
            or time.monotonic() + wait > deadline
        ):
            found.reason = "the rate gate gave no more permits in time"
            return False
        await asyncio.sleep(wait)
    return True


def _note(
    ledger: Ledger,
    plan: SendPlan,
    answered: Sequence[tuple[Row[Any], Reply]],
    read_at: float,
    found: Comparison,
) -> None:
    # Another run may have settled a delivery between our reading and the answer: only what both
    # readings contradict is a contradiction.
    with ledger.read() as conn:
        again = comparable.read_again(conn, [row for row, _ in answered])
    for row, reply in answered:
        asked_at = row.now + int((reply.began - read_at) * MICROS)
        latest = again.get((row.manifest_id, row.ordinal), row)
        can = plan.gateway.capabilities
        one = judge(row, reply.answer, asked_at, can)
        other = judge(row, reply.answer, asked_at, can, latest)
        if Agreement.CONFIRMED in (one, other):
            one = Agreement.CONFIRMED
        found.asked += 1
        _count(found, one, row.operation_key)
        if isinstance(reply.answer, Found) and reply.answer.copies > 1:
            found.duplicated.add(row.operation_key)


def _count(found: Comparison, agreement: Agreement, key: str) -> None:
    match agreement:
        case Agreement.CONFIRMED:
            found.confirmed += 1
        case Agreement.MISSING:
            found.missing_at_provider.add(key)
        case Agreement.UNEXPECTED:
            found.unexpected_at_provider.add(key)
        case Agreement.UNANSWERED:
            found.unanswered.add(key)
        case Agreement.OUTSIDE_WINDOW:
            found.outside_window += 1
        case _:
            assert_never(agreement)
