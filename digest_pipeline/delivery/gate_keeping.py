"""What senders tell a rate gate: pauses, halts and their end. Each is one short transaction."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection

from digest_pipeline import telemetry
from digest_pipeline.delivery import rate_gate
from digest_pipeline.delivery.retry_policy import THROTTLE_DEFAULT
from digest_pipeline.ledger import gates
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.gates import GateState
from digest_pipeline.spec import Rate

_MICROS = 1_000_000


def pause_for(retry_after: float | None) -> float:
    """Return how long a gate closes for an answer with or without Retry-After."""
    return THROTTLE_DEFAULT if retry_after is None else retry_after


def close_gate(ledger: Ledger, name: str, seconds: float) -> None:
    """Close a gate for everyone who shares it."""
    _change(ledger, name, lambda gate, now: rate_gate.close(gate, now, seconds))
    telemetry.gate_closed(name, seconds)


def halt_gate(ledger: Ledger, name: str, reason: str) -> None:
    """Stop sending through a gate until a probe is accepted."""
    _change(ledger, name, lambda gate, now: rate_gate.halt(gate, now, reason))
    telemetry.gate_halted(name, reason)


def reopen_gate(ledger: Ledger, name: str) -> None:
    """End a halt: a message was accepted."""
    _change(ledger, name, lambda gate, _: rate_gate.reopen(gate))


def prepare_gate(conn: Connection, name: str, per_second: float, burst: int) -> None:
    """Set a gate's budget at a run's start, and let a halted one try a single probe now."""
    gates.configure(conn, name, per_second, burst)
    now, locked = gates.lock(conn, [name])
    if locked[name].halt_reason is not None:
        gates.save(conn, rate_gate.allow_probe(locked[name], now))


def permit_one(conn: Connection, name: str, rate: Rate, horizon: float) -> float | None:
    """Take the next permit of a gate, at most ``horizon`` seconds ahead; return when it starts.

    On the monotonic clock of this process. None: the gate is halted (its probes are the digest's own),
    closed, or busy for longer.
    """
    if gates.read(conn, name) is None:
        gates.configure(conn, name, rate.per_second, rate.burst)
    now, locked = gates.lock(conn, [name])
    # Not earlier: the wait for the ledger would let the message out before its permit starts.
    read_at = time.monotonic()
    gate = locked[name]
    granted = rate_gate.grant(gate, now, 1, int(horizon * _MICROS))
    if gate.halt_reason is not None or not granted.starts:
        return None
    gates.save(conn, rate_gate.charge(gate, granted.starts, now))
    return read_at + (granted.starts[0] - now) / _MICROS


def _change(ledger: Ledger, name: str, change: Callable[[GateState, int], GateState]) -> None:
    def work(conn: Connection) -> None:
        now, locked = gates.lock(conn, [name])
        gates.save(conn, change(locked[name], now))

    ledger.transact(work)
