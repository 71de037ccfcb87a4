"""What a person decides about single deliveries: a bounded set of keys, a reason, a dry run first.

Every operation here answers with a Decision: what it would do, or did, and why each refused key was
refused, by name. One bad key never stops the others. The original operation keys are kept, always.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row

from digest_pipeline.errors import InputError
from digest_pipeline.ledger import letters
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

# An address that somebody pasted among the keys is not repeated: what is refused reaches Dagster's log.
_LOOKS_LIKE_A_KEY = re.compile(r"[A-Za-z0-9._~%:/#-]{1,512}\Z").match


@dataclass(frozen=True, slots=True)
class Order:
    """Who wants what done to which keys of one period, and why. ``who`` is declared, not proven.

    ``tenant``: the one whose customers it is about; a digest of several tenants needs it.
    """

    digest: Digest
    period: Period
    keys: tuple[str, ...]
    who: str
    reason: str
    tenant: str | None = None

    def require_bounds(self, cap: int) -> None:
        """Raise InputError for an empty set, nobody's or no reason, no tenant, or more keys than ``cap``."""
        if not self.keys:
            raise InputError("no keys were given: an order names each delivery it is about")
        require_signed("an order", self.who, self.reason)
        if self.tenant is None and self.digest.single_tenant is None:
            raise InputError(
                f"{self.digest.name} has several tenants, and an order is about one of them: --tenant"
            )
        if len(self.keys) > cap:
            raise InputError(
                f"{len(self.keys)} keys are more than the {cap} that one order may name; "
                f"split it: `list --limit {cap} --out FILE` writes a file of that many"
            )


@dataclass(slots=True)
class Decision:
    """What an order comes to. ``applied`` False: a dry run, no delivery was changed.

    ``approval``: the number under which it waits for somebody else; ``needs_approval``: applying it will
    make it wait. ``late``: the delivery window is over, so that what is replayed is sent after it.
    """

    kind: str
    applied: bool
    order: Order
    changed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    approval: int | None = None
    needs_approval: bool = False
    late: bool = False

    @property
    def reasons(self) -> dict[str, int]:
        """How many keys were refused, by reason."""
        counted: dict[str, int] = {}
        for reason in self.refused.values():
            counted[reason] = counted.get(reason, 0) + 1
        return counted

    def facts(self) -> dict[str, Any]:
        """Return what it comes to, in counts: what the command line and Dagster show."""
        order = self.order
        return {
            "order": self.kind,
            "digest": order.digest.name,
            "period": order.period.label,
            "tenant": order.tenant or order.digest.single_tenant,
            "by": order.who,
            "reason": order.reason,
            "applied": self.applied,
            "changed" if self.applied else "would_change": len(self.changed),
            "refused": len(self.refused),
            "refused_because": self.reasons,
            "waits_for_approval": self.approval,
        }

    def notes(self, apply: str = "--apply") -> list[str]:
        """Return what to know about it, and what to do next, one sentence each. ``apply``: how it is told."""
        replays = self.kind == "replay" and self.changed
        return [*self._next(apply), *self._unknown(), *(self._about_sending() if replays else ())]

    def _unknown(self) -> Iterator[str]:
        if self.kind == "replay" and (count := self.reasons.get("it is unknown", 0)):
            yield f"{count} may have been sent, nobody knows: evidence or a person settles them (digest resolve)"

    def _next(self, apply: str) -> Iterator[str]:
        if self.approval is not None:
            command = f"digest replay approve {self.approval} --apply"
            yield f"nothing was changed yet; somebody else approves it with: {command}"
        elif not self.applied:
            yield f"nothing was changed; {apply} does it"
            if self.needs_approval:
                most = self.order.digest.replay.approve_above
                yield f"more than {most} keys: with {apply} it waits until somebody else approves it"

    def _about_sending(self) -> Iterator[str]:
        digest, label = self.order.digest, self.order.period.label
        if self.late:
            yield f"the delivery window of {label} has closed: what is replayed is sent late"
        if not digest.sending.enabled:
            yield "sending is disabled (sending.enabled, or DIGEST_SENDING=off): 0 are sent until it is enabled"
        elif self.applied:
            yield f"they are sent by the next run: digest run --digest {digest.name} --period {label}"


def require_signed(act: str, who: str, reason: str) -> None:
    """Raise InputError unless somebody says who they are and why."""
    if not reason.strip():
        raise InputError(f"{act} needs a reason: it is written to the audit trail")
    if not who.strip():
        raise InputError(f"{act} needs to say who gives it: --by")


def unique(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys once each, in order."""
    return tuple(dict.fromkeys(key.strip() for key in keys if key.strip()))


def judge(
    conn: Connection, order: Order, why_not: Callable[[Row[Any]], str | None]
) -> tuple[list[Row[Any]], dict[str, str]]:
    """Return the rows that an order may change, and why not for each other key, in the order's order.

    ``why_not`` returns a reason to refuse a row of the order's period and tenant, or None.
    """
    known = [key for key in order.keys if _LOOKS_LIKE_A_KEY(key)]
    found = letters.by_keys(conn, order.digest.name, order.period.label, known)
    good: list[Row[Any]] = []
    refused: dict[str, str] = {}
    for number, key in enumerate(order.keys, 1):
        row = found.get(key)
        if not _LOOKS_LIKE_A_KEY(key):
            refused[f"number {number} of the keys"] = "not an operation key"
        elif row is None:
            refused[key] = "not a delivery of this period"
        elif order.tenant is not None and row.tenant != order.tenant:
            refused[key] = "a delivery of another tenant"
        elif reason := why_not(row):
            refused[key] = reason
        else:
            good.append(row)
    return good, refused
