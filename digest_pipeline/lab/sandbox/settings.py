"""The sandbox provider's switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from digest_pipeline.gateways.base import Idempotency

CHANGEABLE = frozenset(
    {
        "latency_ms",
        "idempotency",
        "key_lifetime",
        "look_up",
        "visibility_delay",
        "retention",
        "rate",
        "burst",
    }
)
"""What ``/admin/settings`` may change while the server runs, until its process ends."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How the provider behaves. Times are seconds, except ``latency_ms``.

    ``port`` 0 takes a free one. ``rate`` (per second, messages and look-ups counted alike) None means
    no limit; ``burst`` defaults to one second's worth. ``profile`` and ``seed`` name a fault plan.
    """

    host: str = "127.0.0.1"
    port: int = 0
    api_key: str = "sandbox-key"
    latency_ms: float = 0.0
    idempotency: Idempotency = Idempotency.REPLAYS
    key_lifetime: float = 24 * 3600.0
    look_up: bool = True
    visibility_delay: float = 0.0
    retention: float = 30 * 24 * 3600.0
    rate: float | None = None
    burst: float | None = None
    profile: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "idempotency", Idempotency(self.idempotency))
        if self.rate is not None and self.rate <= 0:
            raise ValueError("rate must be above 0; leave it out for no limit")

    def changed(self, changes: Mapping[str, Any]) -> SandboxSettings:
        """Return a copy with other switches. Raises ValueError for one that needs a restart."""
        if refused := set(changes) - CHANGEABLE:
            raise ValueError(f"cannot be changed while running: {', '.join(sorted(refused))}")
        return replace(self, **changes)

    def public(self) -> dict[str, Any]:
        """Return all settings but the API key."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "api_key"}
