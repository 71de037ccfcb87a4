"""Named points where a test can make the process die, pause or fail. Inert in production.

``DIGEST_FAULT`` names one point as ``point:action[:hit]``: at the ``hit``-th pass (the first by
default) through that point the process kills itself with SIGKILL (``kill``), stops itself with
SIGSTOP (``stop``) or raises (``raise``). Without the variable, ``reach`` is one attribute test.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum


class Point(StrEnum):
    """Every point, each reached from exactly one place in the code."""

    MANIFEST_BUILDING = "manifest_building"
    MANIFEST_SEALED = "manifest_sealed"
    CONTENT_BUILDING = "content_building"
    BEFORE_FIRST_CLAIM = "before_first_claim"
    AFTER_GATE = "after_gate"
    AFTER_CLAIM_COMMIT = "after_claim_commit"
    BEFORE_PROVIDER_CALL = "before_provider_call"
    DURING_PROVIDER_CALL = "during_provider_call"
    AFTER_PROVIDER_CALL = "after_provider_call"
    BEFORE_SETTLE_COMMIT = "before_settle_commit"
    AFTER_SETTLE_COMMIT = "after_settle_commit"
    DURING_LOOK_UP = "during_look_up"
    BEFORE_EVIDENCE_COMMIT = "before_evidence_commit"
    AFTER_EVIDENCE_COMMIT = "after_evidence_commit"
    INSIDE_CLEANUP = "inside_cleanup"
    AFTER_CLEANUP_COMMIT = "after_cleanup_commit"


class InjectedError(RuntimeError):
    """Raised at a point by a test that asked for it."""


class _Plan:
    def __init__(self, text: str | None) -> None:
        self.point: str | None = None
        if text:
            point, action, *hit = text.split(":")
            self.point, self.action, self.left = Point(point), action, int(hit[0]) if hit else 1


_plan = _Plan(os.environ.get("DIGEST_FAULT"))


def arm(text: str | None) -> None:
    """Plan another fault, or none: for a process that was forked from one that runs already."""
    global _plan
    _plan = _Plan(text)


def reach(point: Point) -> None:
    """Mark that the code has come to ``point``; does what the environment asked for, if anything."""
    if _plan.point is not point:
        return
    _plan.left -= 1
    if _plan.left != 0:
        return
    if _plan.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif _plan.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise InjectedError(point)
