"""What a kind of gateway declares of itself, and the reading of its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.base import Capabilities, Gateway
from digest_pipeline.gateways.http import HttpLimits

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kind:
    """How to build one kind. ``settings`` names what it reads, with a word on each.

    Any capability may be given beside them, where an account's real limits differ from what the
    provider documents. ``secrets`` are the settings that may come from the environment only.
    """

    summary: str
    capabilities: Capabilities
    settings: Mapping[str, str]
    factory: Callable[[Settings, Capabilities], Gateway]
    secrets: frozenset[str] = frozenset()


LIMIT_SETTINGS = {"time_out": "of one call, e.g. 30s", "connections": "at most this many at once"}
"""What every HTTP gateway reads beside its own settings; a digest's ``sending`` sets both."""


def http_limits(settings: Settings) -> HttpLimits:
    """Return the limits that ``LIMIT_SETTINGS`` name. Raises SpecError."""
    return HttpLimits(
        total=duration("time_out", settings.get("time_out", "30s")),
        connections=number("connections", settings.get("connections", "100")),
    )


def required(kind: str, settings: Settings, name: str) -> str:
    """Return a setting. Raises SpecError where it is missing or empty."""
    if not settings.get(name):
        raise SpecError(f"the {kind} gateway needs the setting {name!r}")
    return settings[name]


def require_credential(kind: str, secrets: Sequence[str]) -> None:
    """Raise SpecError for what no header can carry, such as the line end of a file it was read from."""
    if not all(secret.isascii() and secret.isprintable() and " " not in secret for secret in secrets):
        raise SpecError(
            f"the {kind} gateway's credential holds a space, a line end or a letter outside ASCII; "
            "set its variable to the credential alone"
        )


def duration(name: str, text: str) -> timedelta:
    """Return the time that a text like ``30s`` or ``24h`` means. Raises SpecError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", text)
    if not match:
        raise SpecError(f"{name} is a number with a unit (ms, s, m, h, d), such as 30s; not {text!r}")
    seconds = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[match[2]]
    return timedelta(seconds=float(match[1]) * seconds)


def number(name: str, text: str) -> int:
    """Return a whole number above 0. Raises SpecError."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise SpecError(f"{name} is a whole number above 0, not {text!r}")
    return int(text)


def truth(name: str, text: str) -> bool:
    """Return what ``true`` or ``false`` means. Raises SpecError for anything else."""
    if text.lower() not in ("true", "false"):
        raise SpecError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"
