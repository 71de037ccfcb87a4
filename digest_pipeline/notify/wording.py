"""How an incident reads: the same words and the same bytes at every try, since keys are replayed."""

from __future__ import annotations

import json
from datetime import datetime
from email.utils import format_datetime
from html import escape
from typing import Any

from digest_pipeline.content.headers import message_id
from digest_pipeline.content.mailbox import parse_mailbox
from digest_pipeline.content.message import Message
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger.incidents import Incident
from digest_pipeline.notify.incident import Facts, Kind

_HEADLINES = {
    Kind.RUN_FAILED: "a run failed at {subject}",
    Kind.RUN_CANCELED: "a run was canceled",
    Kind.CHECK_FAILED: "the check {subject} fails",
    Kind.CHECK_WARNED: "the check {subject} warns",
    Kind.ORDER_FAILED: "the order {subject} failed",
    Kind.SENDING_HALTED: "sending is halted",
    Kind.UNKNOWN_HELD: "unknown deliveries need a decision ({subject})",
    Kind.WINDOW_CLOSED: "the window closed before everybody was sent to",
    Kind.PERIOD_MISSED: "a period was missed",
    Kind.TEST: "a test",
}


def headline(incident: Incident) -> str:
    """Return one line: digest, period, what."""
    what = _HEADLINES[Kind(incident.kind)].format(subject=incident.subject)
    return f"{' '.join(part for part in (incident.digest, incident.period) if part)}: {what}"


def as_fields(incident: Incident, ui_url: str) -> dict[str, Any]:
    """Return an incident as plain data: what the webhook is sent as JSON, and the log as fields."""
    facts = Facts.from_json(incident.facts)
    return {
        "id": incident.id,
        "kind": incident.kind,
        "severity": incident.severity,
        "digest": incident.digest,
        "period": incident.period,
        "subject": incident.subject,
        "opened_at": _when(incident).isoformat(timespec="seconds"),
        "headline": headline(incident),
        "text": facts.text,
        "counts": dict(facts.counts),
        "keys": list(facts.keys),
        "next": facts.next_command,
        "run_id": facts.run_id,
        "url": link(facts, ui_url),
    }


def as_json(incident: Incident, ui_url: str) -> bytes:
    """Return the webhook's body."""
    return json.dumps(as_fields(incident, ui_url), ensure_ascii=False, sort_keys=True).encode("utf-8")


def as_text(incident: Incident, ui_url: str) -> str:
    """Return an incident as a person reads it."""
    facts = Facts.from_json(incident.facts)
    lines = [headline(incident), "", facts.text, ""]
    lines += [f"{name.replace('_', ' ')}: {count:,}" for name, count in facts.counts]
    lines += [f"for example {key}" for key in facts.keys]
    lines += [f"next: {facts.next_command}"] if facts.next_command else []
    if url := link(facts, ui_url):
        lines.append(f"run: {url}")
    elif facts.run_id:
        lines.append(f"run: {facts.run_id}")
    lines += ["", f"severity: {incident.severity}", f"seen first: {_when(incident):%Y-%m-%d %H:%M:%S} UTC"]
    lines += [f"incident: {incident.id}", "", "You are told once. It ends when this is well again."]
    return "\n".join(lines) + "\n"


def as_message(incident: Incident, sender: str, ui_url: str) -> Message:
    """Return the mail. Raises SpecError for a sender that is not one mailbox."""
    mailbox = parse_mailbox(sender, "From")
    text = as_text(incident, ui_url)
    return Message(
        sender=str(mailbox),
        to_name="",
        subject=f"[{incident.severity}] {headline(incident)}",
        text=text,
        html=f"<pre>{escape(text)}</pre>\n",
        headers=(
            ("Date", format_datetime(_when(incident))),
            ("Message-ID", message_id(mail_key(incident, ""), mailbox.domain)),
            # RFC 3834: no out-of-office reply to an alarm.
            ("Auto-Submitted", "auto-generated"),
        ),
        boundary=f"incident-{incident.id}",
    )


def mail_key(incident: Incident, recipient_hash: str) -> str:
    """Return the idempotency key of a mail: no operation key has a slash before its first colon."""
    return f"incident/{incident.id}/{recipient_hash}"


def link(facts: Facts, ui_url: str) -> str:
    """Return the address of the run in the Dagster UI, or an empty string."""
    return f"{ui_url}/runs/{facts.run_id}" if ui_url and facts.run_id else ""


def _when(incident: Incident) -> datetime:
    return as_datetime(incident.opened_at).replace(microsecond=0)
