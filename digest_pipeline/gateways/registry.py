"""Every kind of gateway by the name that a digest's specification uses."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import (
    brevo,
    https_push,
    maildir,
    mailgun,
    mailjet,
    postmark,
    resend,
    sandbox,
    sendgrid,
    ses,
    smtp,
)
from digest_pipeline.gateways.base import BatchKey, Capabilities, Gateway, Idempotency
from digest_pipeline.gateways.installed import installed_kinds
from digest_pipeline.gateways.kinds import Kind, Settings, duration, number, truth

KINDS: dict[str, Kind] = {
    "sandbox": sandbox.KIND,
    "maildir": maildir.KIND,
    "smtp": smtp.KIND,
    "resend": resend.KIND,
    "postmark": postmark.KIND,
    "mailjet": mailjet.KIND,
    "ses": ses.KIND,
    "sendgrid": sendgrid.KIND,
    "mailgun": mailgun.KIND,
    "brevo": brevo.KIND,
    "https_push": https_push.KIND,
}
KINDS |= installed_kinds(KINDS)

_CAPABILITIES = frozenset(f.name for f in fields(Capabilities))


def create(kind: str, settings: Settings, capabilities: Mapping[str, Any] | None = None) -> Gateway:
    """Return a gateway, not entered yet. Raises SpecError for anything it can't use.

    ``capabilities`` override the kind's; so do settings of the same names, as text: ``24h``, ``true``.
    """
    if kind not in KINDS:
        raise SpecError(f"no gateway kind {kind!r}{_nearest(kind, KINDS)}; there are: {', '.join(KINDS)}")
    found = KINDS[kind]
    for name in settings:
        if name not in found.settings and name not in _CAPABILITIES:
            known = [*found.settings, *sorted(_CAPABILITIES)]
            raise SpecError(f"the {kind} gateway has no setting {name!r}{_nearest(name, known)}")
    as_text = {name: _capability(name, text) for name, text in settings.items() if name in _CAPABILITIES}
    return found.factory(settings, _overridden(found.capabilities, as_text | dict(capabilities or {})))


def describe() -> list[dict[str, Any]]:
    """Return each kind with its settings and capabilities, as plain data. Durations in seconds."""
    return [
        {
            "kind": name,
            "summary": kind.summary,
            "settings": dict(kind.settings),
            "secrets": sorted(kind.secrets),
            "capabilities": {
                f.name: _plain(getattr(kind.capabilities, f.name)) for f in fields(kind.capabilities)
            },
        }
        for name, kind in KINDS.items()
    ]


def _overridden(default: Capabilities, changes: Mapping[str, Any]) -> Capabilities:
    """Return the capabilities; switching keys or look-ups off drops their times."""
    if unknown := set(changes) - _CAPABILITIES:
        raise SpecError(f"no capability {min(unknown)!r}{_nearest(min(unknown), _CAPABILITIES)}")
    dropped: dict[str, Any] = {}
    if changes.get("idempotency") == Idempotency.NONE:
        dropped["key_lifetime"] = None
    if changes.get("batch_size") == 1:
        dropped["batch_key"] = BatchKey.NONE
    if changes.get("look_up") is False:
        dropped |= {"visibility_delay": None, "look_up_retention": None}
    try:
        return replace(default, **dropped | dict(changes))
    except ValueError as error:
        raise SpecError(f"gateway capabilities: {error}") from error


def _capability(name: str, text: str) -> Any:
    match name:
        case "idempotency":
            return _member(name, Idempotency, text)
        case "batch_key":
            return _member(name, BatchKey, text)
        case "look_up" | "delivered_proof" | "events" | "smtputf8":
            return truth(name, text)
        case "batch_size":
            return number(name, text)
        case _:
            return duration(name, text)


def _member(name: str, members: type[StrEnum], text: str) -> StrEnum:
    try:
        return members(text)
    except ValueError:
        raise SpecError(f"{name} is one of {', '.join(members)}, not {text!r}") from None


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
