"""Every log event of the package, with its fields: one function each.

No address, name, content or secret is ever a field. There is exactly one line per attempt, at the
debug level; at the info level a run tells its progress every few seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

import structlog

from digest_pipeline.redaction import keep_environment, redact

_log = structlog.get_logger("digest_pipeline")


def configure_logging(level: str = "INFO") -> None:
    """Write log lines from ``level`` upwards to standard error. For processes, not for libraries.

    What this process knows to be secret is taken out of every line, also out of those that other libraries
    write with ``logging``, whatever their level and wherever they go, and out of tracebacks that end it.
    """
    keep_environment(os.environ)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
            _redacted_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _redact_other_loggers()


def redact_tracebacks() -> None:
    """Take secrets out of the traceback that ends this process, or one of its threads."""

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = ended
    threading.excepthook = lambda told: ended(
        told.exc_type, told.exc_value or told.exc_type(), told.exc_traceback
    )


def _redacted_line(_logger: Any, _name: str, line: Any) -> str:
    return redact(str(line))


def _redact_other_loggers() -> None:
    """Make every record of ``logging`` without secrets; one that holds none is left as it is."""
    made = logging.getLogRecordFactory()
    if isinstance(made, _RedactingFactory):
        return
    logging.setLogRecordFactory(_RedactingFactory(made))


class _RedactingFactory:
    """Makes log records. On the factory, not on handlers: those are of whoever configures ``logging``."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __call__(self, *args: Any, **keywords: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._made(*args, **keywords)
        try:
            said = record.getMessage()
        except Exception:  # noqa: BLE001 - a record that cannot be formatted is its handler's to report
            return record
        if (safe := redact(said)) != said:
            record.msg, record.args = safe, ()
        if record.exc_info and record.exc_info[0] is not None:
            told = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if (safe := redact(told)) != told:
                # Formatters take a text that is there already; without exc_info no handler makes another.
                record.exc_text, record.exc_info = safe, None
        return record


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


def worker_started(digests: list[str], run: str) -> None:
    """A pull worker looks for work in these digests; its attempts carry the run's name."""
    _log.info("worker_started", digests=digests, run=run)


def work_found(digest: str, work: dict[str, str]) -> None:
    """A worker begins with a digest: period -> why it has work."""
    _log.info("work_found", digest=digest, work=work)


def work_done(
    digest: str, accepted: int, findings: dict[str, int], halted: str | None, seconds: float
) -> None:
    """A worker is through with what a digest had to do."""
    _log.info(
        "work_done",
        digest=digest,
        accepted=accepted,
        findings=findings,
        halted=halted,
        seconds=round(seconds, 1),
    )


def work_refused(digest: str, reason: str) -> None:
    """A worker does not touch these manifests: they are not what was sealed."""
    _log.error("work_refused", digest=digest, reason=reason)


def worker_waits(digest: str, seconds: float, note: str) -> None:
    """A worker found nothing that it may do, or nothing more; it looks again later."""
    _log.debug("worker_waits", digest=digest, seconds=seconds, note=note)


def worker_looks_again(digest: str, error_class: str) -> None:
    """The ledger could not be reached for longer than a write's patience; the worker goes on trying."""
    _log.error("worker_looks_again", digest=digest, error_class=error_class)


def worker_stopped(accepted: int) -> None:
    """A worker ended: calls under way were settled, claims that had not gone out were released."""
    _log.info("worker_stopped", accepted=accepted)
