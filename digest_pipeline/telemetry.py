"""Every log event of the package, with its fields: one function each.

No address, name, content or secret is ever a field. There is exactly one line per attempt, at the
debug level; at the info level a run tells its progress every few seconds.
"""

from __future__ import annotations

import logging
import sys

import structlog

_log = structlog.get_logger("digest_pipeline")


def configure_logging(level: str = "INFO") -> None:
    """Write log lines from ``level`` upwards to standard error. For processes, not for libraries."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def attempt_ended(key: str, token: int, outcome: str, failure_class: str | None, detail: str | None) -> None:
    """One attempt ended; ``detail`` was sanitised by the gateway."""
    _log.debug(
        "attempt_ended", key=key, token=token, outcome=outcome, failure_class=failure_class, detail=detail
    )


def progress(settled: int, per_second: float) -> None:
    """How far a sender has come: rows settled, and how many a second."""
    _log.info("progress", settled=settled, per_second=round(per_second, 1))


def leases_expired(count: int) -> None:
    """Claims of senders that are gone were turned into unknown."""
    _log.warning("leases_expired", count=count)


def gate_closed(gate: str, seconds: float) -> None:
    """The provider asked for a pause; everyone who uses the gate waits."""
    _log.warning("gate_closed", gate=gate, seconds=round(seconds, 1))


def gate_halted(gate: str, reason: str) -> None:
    """The provider refuses the account, or cannot be reached: sending stops."""
    _log.error("gate_halted", gate=gate, reason=reason)


def drift_unknown(reason: str) -> None:
    """The source could not be read again, so a sealed manifest was not compared with it."""
    _log.warning("drift_unknown", reason=reason)


def late_result(tokens: int, accepted: int) -> None:
    """Results came back for claims that were lost meanwhile; recorded on their attempts."""
    _log.error("late_result", tokens=tokens, accepted=accepted)


def overtaken(keys: list[str]) -> None:
    """An older attempt turned out to be accepted after these were tried again: an alert for each."""
    for key in keys:
        _log.error("late_acceptance", key=key)


def result_refused(key: str, token: int) -> None:
    """The ledger refuses to store how an attempt ended; its delivery becomes unknown with its lease."""
    _log.error("result_refused", key=key, token=token)


def ledger_write_again(error_class: str) -> None:
    """A write met a lost connection, a deadlock or a busy file, and is tried again."""
    _log.warning("ledger_write_again", error_class=error_class)


def evidence_found(findings: dict[str, int]) -> None:
    """What a round of look-ups proved: finding -> deliveries."""
    _log.info("evidence_found", **findings)
