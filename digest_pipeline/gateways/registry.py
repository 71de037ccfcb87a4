"""Every kind of gateway by the name that a digest's specification uses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import sandbox
from digest_pipeline.gateways.base import Capabilities, Gateway, Idempotency
from digest_pipeline.gateways.http import HttpLimits

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kind:
    """How to build one kind. ``settings`` names what it reads, with a word on each.

    Any capability may be given beside them, where an account's real limits differ from what the
    provider documents.
    """

    summary: str
    capabilities: Capabilities
    settings: Mapping[str, str]
    factory: Callable[[Settings, Capabilities], Gateway]


def _sandbox(settings: Settings, capabilities: Capabilities) -> Gateway:
    limits = HttpLimits(
        total=_duration("time_out", settings.get("time_out", "30s")),
        connections=_number("connections", settings.get("connections", "100")),
    )
    return sandbox.SandboxGateway(
        _required("sandbox", settings, "url"), _required("sandbox", settings, "api_key"), capabilities, limits
    )


KINDS: dict[str, Kind] = {
    "sandbox": Kind(
        summary="the sandbox provider: an HTTP mail API that records what it accepts",
        capabilities=sandbox.DEFAULT_CAPABILITIES,
        settings={
            "url": "base URL, e.g. http://127.0.0.1:8025",
            "api_key": "from the environment",
            "time_out": "of one call, e.g. 30s",
            "connections": "at most this many at once",
        },
        factory=_sandbox,
    ),
}

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
    if changes.get("look_up") is False:
        dropped |= {"visibility_delay": None, "look_up_retention": None}
    try:
        return replace(default, **dropped | dict(changes))
    except ValueError as error:
        raise SpecError(f"gateway capabilities: {error}") from error


def _capability(name: str, text: str) -> Any:
    match name:
        case "idempotency":
            try:
                return Idempotency(text)
            except ValueError:
                raise SpecError(f"idempotency is one of {', '.join(Idempotency)}, not {text!r}") from None
        case "look_up" | "delivered_proof":
            if text.lower() not in ("true", "false"):
                raise SpecError(f"{name} is true or false, not {text!r}")
            return text.lower() == "true"
        case "batch_size":
            return _number(name, text)
        case _:
            return _duration(name, text)


def _duration(name: str, text: str) -> timedelta:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", text)
    if not match:
        raise SpecError(f"{name} is a number with a unit (ms, s, m, h, d), such as 30s; not {text!r}")
    seconds = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[match[2]]
    return timedelta(seconds=float(match[1]) * seconds)


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise SpecError(f"{name} is a whole number above 0, not {text!r}")
    return int(text)


def _required(kind: str, settings: Settings, name: str) -> str:
    if not settings.get(name):
        raise SpecError(f"the {kind} gateway needs the setting {name!r}")
    return settings[name]


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
