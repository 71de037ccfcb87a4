"""What a person may do at a subscriber: see which pushed keys wait for them, and settle those. Audited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.errors import InputError
from digest_pipeline.ledger import audit, receipts
from digest_pipeline.ledger.audit import Action
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.receipts import Receipt, ReceiptState
from digest_pipeline.operations.decisions import require_signed
from digest_pipeline.operations.resolve import Verdict

CAP = 1_000
"""Keys of one order."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What an order comes to: the keys it changes, or would, and why not the others."""

    changed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def listed(ledger: Ledger, limit: int) -> list[Row[Any]]:
    """Return the receipts that nothing moves but an event or a person, unknown ones first."""
    with ledger.read() as conn:
        return receipts.stuck(conn, limit)


def resolve(
    ledger: Ledger, keys: Sequence[str], verdict: Verdict, *, who: str, reason: str, apply: bool
) -> Settled:
    """Return, and with ``apply`` carry out, what settling these keys comes to.

    ``sent`` ends an unknown. ``not-sent`` lets the next push of an unknown or rejected key be sent: said of
    one that was sent after all, it is a second mail. Any other key is refused by name. Raises InputError
    for an order without keys, with too many, or unsigned.
    """
    require_signed("settling pushed keys", who, reason)
    if not keys or len(keys) > CAP:
        raise InputError(f"name 1 to {CAP:,} operation keys, not {len(keys):,}")
    if verdict is Verdict.WRITTEN_OFF:
        raise InputError("a receipt is settled as sent or not-sent: the pipeline is what writes off")

    def work(conn: Connection) -> Settled:
        done = Settled()
        for key in dict.fromkeys(keys):
            receipt = receipts.lock(conn, key)
            why = _why_not(receipt, verdict)
            if why is None and receipt is not None and (not apply or _settle(conn, receipt, verdict)):
                done.changed.append(key)
            else:
                done.refused[key] = why or "it was settled meanwhile"
        if apply and done.changed:
            action = Action("resolve push", who, reason, keys=done.changed)
            audit.record(conn, action, {"as": str(verdict), "resolved": len(done.changed)})
        return done

    return ledger.transact(work)


def _why_not(receipt: Receipt | None, verdict: Verdict) -> str | None:
    if receipt is None:
        return "it was never pushed here"
    may = {ReceiptState.UNKNOWN} | ({ReceiptState.REJECTED} if verdict is Verdict.NOT_SENT else set())
    return None if receipt.state in may else f"it is {receipt.state}"


def _settle(conn: Connection, receipt: Receipt, verdict: Verdict) -> bool:
    arrow = receipts.resolve_sent if verdict is Verdict.SENT else receipts.reopen
    return arrow(conn, receipt.operation_key, receipt.token)
