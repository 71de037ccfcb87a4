"""The clock that a lease is watched with: monotonic, and running while the machine sleeps.

``time.monotonic`` stands still on Linux while a laptop or a virtual machine is suspended; the ledger's
leases don't. A sender that woke up would take an old claim for a fresh one.
"""

from __future__ import annotations

import time

_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: its monotonic clock is what there is


def now() -> float:
    """Return the seconds since the machine's start, sleep included. Comparable within one boot only."""
    return time.clock_gettime(_ID)
