"""What a subscriber answers to a push: a closed set, each with one status (docs/push.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starlette.responses import JSONResponse

from digest_pipeline.outcomes import FailureClass

MICROS = 1_000_000
_MOST_WAIT = 3600


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. ``wait``: seconds until it is worth asking again; None where that changes nothing."""

    status: int
    outcome: str
    message_id: str | None = None
    replayed: bool = False
    failure_class: FailureClass | None = None
    suppressed: bool = False
    wait: float | None = None

    def response(self) -> JSONResponse:
        """Return it as it goes over the wire."""
        body: dict[str, object] = {"outcome": self.outcome}
        if self.outcome == "complete":
            body |= {"message_id": self.message_id, "replayed": self.replayed}
        if self.failure_class is not None:
            body |= {"class": str(self.failure_class), "suppressed": self.suppressed}
        headers = {"Cache-Control": "no-store"}
        if self.wait is not None:
            headers["Retry-After"] = str(min(_MOST_WAIT, max(1, math.ceil(self.wait))))
        return JSONResponse(body, self.status, headers)


def complete(message_id: str | None, *, replayed: bool) -> Reply:
    """It was accepted, now or before."""
    return Reply(200, "complete", message_id, replayed)


def rejected(failure_class: FailureClass, *, suppressed: bool) -> Reply:
    """It can't be sent to this recipient, or as it is, and was not."""
    return Reply(422, "rejected", failure_class=failure_class, suppressed=suppressed)


def busy(wait: float) -> Reply:
    """Another push of the same key is under way."""
    return Reply(409, "busy", wait=wait)


def unknown(wait: float | None) -> Reply:
    """It may have been accepted; the same key again, later, may find out."""
    return Reply(409, "unknown", wait=wait)


def throttled(wait: float) -> Reply:
    """There is no capacity for it now; nothing was tried."""
    return Reply(429, "throttled", wait=wait)


def retry(wait: float | None = None) -> Reply:
    """It was not sent, and may be another time."""
    return Reply(503, "retry", wait=wait)


INTEGRITY = Reply(409, "integrity")
"""Other bytes under a known key, or none that have the hash: never sent."""

HALTED = Reply(503, "halted")
"""Nothing goes out here until a person acts."""


def refused(status: int) -> Reply:
    """The request itself is no push of ours."""
    return Reply(status, "refused")
