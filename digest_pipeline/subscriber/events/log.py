"""What is logged of events: providers and counts, never an address or a secret."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

_log = structlog.get_logger("digest_pipeline")


def events_taken_in(provider: str, taken: Mapping[str, int]) -> None:
    """One request of a provider's was taken in: what became of its events, counted."""
    _log.info("events_taken_in", provider=provider, **taken)


def subscription_confirmed(topic: str) -> None:
    """A topic on our list has subscribed this endpoint."""
    _log.warning("subscription_confirmed", topic=topic)
