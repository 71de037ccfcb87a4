"""Time that passes at once: in a ledger, whose instants move back, and in a process, whose clocks jump.

Both together are what a real pause looks like from inside: ``pass_time`` makes leases end and rows
come due for everybody who looks at the ledger; a ``Clock`` tells a process that was stopped meanwhile.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import text

from digest_pipeline.ledger.engine import Ledger

MICROS = 1_000_000

INSTANTS: Mapping[str, tuple[str, ...]] = {
    "delivery": (
        "due_at",
        "lease_ends",
        "claimed_at",
        "budget_from",
        "late_until",
        "ambiguous_at",
        "absent_at",
        "finished_at",
        "cleaned_at",
    ),
    "attempt": ("claimed_at", "ended_at", "late_at"),
    "rate_gate": ("next_free_at", "closed_until", "probe_at"),
    "manifest": ("window_opens_at", "window_closes_at", "late_until", "content_sealed_at"),
    "suppression": ("since_at", "expires_at", "lifted_at"),
    "provider_event": ("happened_at", "received_at"),
    "push_receipt": (
        "claimed_at",
        "lease_ends",
        "ambiguous_at",
        "ended_at",
        "absent_at",
        "due_at",
        "received_at",
        "finished_at",
    ),
}
"""Every instant that the ledger compares with its clock, by table."""


def pass_time(ledger: Ledger, seconds: float) -> None:
    """Move every instant in the ledger back, in one transaction: as if that much time had passed."""
    by = {"by": int(seconds * MICROS)}
    with ledger.write() as conn:
        for table, columns in INSTANTS.items():
            moved = ", ".join(f"{column} = {column} - :by" for column in columns)
            conn.execute(text(f"UPDATE {table} SET {moved}"), by)  # noqa: S608 - our own names


class Clock:
    """How far another process's clocks are off, in a file that both have mapped.

    ``wall``: the calendar's clock, which can be wrong. ``running``: the monotonic ones, which jump when
    a process was stopped. Seconds, added to what was shifted before.
    """

    _LAYOUT = struct.Struct("=qq")

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(self._LAYOUT.pack(0, 0))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), self._LAYOUT.size)

    def shift(self, *, wall: float = 0.0, running: float = 0.0) -> None:
        """Let the process's clocks jump now."""
        old_wall, old_running = self.offsets()
        self._LAYOUT.pack_into(self._page, 0, old_wall + int(wall * 1e9), old_running + int(running * 1e9))

    def offsets(self) -> tuple[int, int]:
        """Return what is added to the calendar's and to the monotonic clocks, in nanoseconds."""
        wall, running = self._LAYOUT.unpack_from(self._page, 0)
        return wall, running


def live_by(clock: Clock) -> None:
    """Have this process read its clocks through a Clock from now on. Cannot be undone."""

    def in_seconds(real: Callable[[], float], place: int) -> Callable[[], float]:
        return lambda: real() + clock.offsets()[place] / 1e9

    def in_nanoseconds(real: Callable[[], int], place: int) -> Callable[[], int]:
        return lambda: real() + clock.offsets()[place]

    patched: dict[str, Callable[..., Any]] = {
        "time": in_seconds(time.time, 0),
        "time_ns": in_nanoseconds(time.time_ns, 0),
        "monotonic": in_seconds(time.monotonic, 1),
        "monotonic_ns": in_nanoseconds(time.monotonic_ns, 1),
        "clock_gettime": _clock_gettime(clock),
    }
    for name, function in patched.items():
        setattr(time, name, function)


def _clock_gettime(clock: Clock) -> Callable[[int], float]:
    real = time.clock_gettime

    def clock_gettime(which: int) -> float:
        return real(which) + clock.offsets()[0 if which == time.CLOCK_REALTIME else 1] / 1e9

    return clock_gettime
