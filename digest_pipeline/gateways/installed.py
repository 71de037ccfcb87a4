"""Kinds of gateways that other installed packages bring along, as entry points."""

from __future__ import annotations

from collections.abc import Container
from importlib.metadata import entry_points

from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.kinds import Kind

GROUP = "digest_pipeline.gateways"
"""``name = "package.module:KIND"`` under this group makes ``name`` a kind that a specification may use."""


def installed_kinds(taken: Container[str]) -> dict[str, Kind]:
    """Return the kinds of other packages by name.

    Raises SpecError, naming the entry point, for one that cannot be loaded, is no Kind, or has a name that
    is taken: a digest that names it could not be sent, or would be sent by something else.
    """
    found: dict[str, Kind] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in taken or entry.name in found:
            raise SpecError(f"the gateway {entry.name} ({entry.value}): there is one of that name already")
        try:
            kind = entry.load()
        except Exception as error:
            raise SpecError(
                f"the gateway {entry.name} ({entry.value}) cannot be loaded: {type(error).__name__}"
            ) from error
        if not isinstance(kind, Kind):
            raise SpecError(
                f"the gateway {entry.name} ({entry.value}) is no digest_pipeline.gateways.kinds.Kind"
            )
        found[entry.name] = kind
    return found
