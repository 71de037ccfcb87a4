"""The channel that always works: one log line for each incident, and one for each try that did not."""

from __future__ import annotations

import structlog

from digest_pipeline.ledger.incidents import Incident
from digest_pipeline.notify.channels import Try
from digest_pipeline.notify.incident import Severity
from digest_pipeline.notify.wording import as_fields

_log = structlog.get_logger("digest_pipeline")
_LEVELS = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.ERROR: "error"}


def incident_opened(incident: Incident, ui_url: str) -> None:
    """Somebody is needed: what a person is told, as fields."""
    level = _LEVELS.get(Severity(incident.severity), "critical")
    getattr(_log, level)("incident_opened", **as_fields(incident, ui_url))


def incident_closed(kind: str, digest: str, period: str, subject: str) -> None:
    """It is well again; the next failure of this kind is a new incident."""
    _log.info("incident_closed", kind=kind, digest=digest, period=period, subject=subject)


def notice_not_delivered(incident: Incident, channel: str, tried: Try) -> None:
    """A channel could not be told, or may have been: how the try ended."""
    _log.warning(
        "notice_not_delivered", incident=incident.id, channel=channel, outcome=tried.told, why=tried.why
    )
