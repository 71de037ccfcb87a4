"""What is logged of pushes: keys and outcomes, never an address, a secret or content."""

from __future__ import annotations

import structlog

_log = structlog.get_logger("digest_pipeline")


def push_decided(key: str, outcome: str, status: int) -> None:
    """One push was answered: the line of an attempt at this end."""
    _log.debug("push_decided", key=key, outcome=outcome, status=status)


def push_refused(reason: str) -> None:
    """A request was no push of ours; the reason is one of a few constant ones."""
    _log.warning("push_refused", reason=reason)


def content_unavailable(reason: str) -> None:
    """A message could not be fetched; the push comes again."""
    _log.warning("content_unavailable", reason=reason)


def ledger_refuses(reason: str) -> None:
    """The ledger is a copy, or another environment's: nothing is sent from it."""
    _log.error("ledger_refuses", reason=reason)


def request_failed(error_class: str) -> None:
    """A request ended in an error that nobody expected; it was answered 500."""
    _log.error("request_failed", error_class=error_class)


def subscriber_started(url: str, digests: list[str], routes: list[str]) -> None:
    """The server listens."""
    _log.info("subscriber_started", url=url, digests=digests, routes=routes)
