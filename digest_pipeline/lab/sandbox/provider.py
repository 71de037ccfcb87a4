"""One running provider: its switches, its memory and its door."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from digest_pipeline.lab.sandbox.answers import refuse
from digest_pipeline.lab.sandbox.faults import profile
from digest_pipeline.lab.sandbox.intake import Intake, Request
from digest_pipeline.lab.sandbox.limiter import Limiter
from digest_pipeline.lab.sandbox.messages import Problem
from digest_pipeline.lab.sandbox.plan import Plan
from digest_pipeline.lab.sandbox.records import Arrival, Verdict
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.lab.sandbox.store import GROUP_SECONDS, Store

_UNAUTHORIZED = Problem(401, "invalid_api_key", "the API key is not valid")
_THROTTLED = Problem(429, "rate_limit_exceeded", "too many requests")


def now_us() -> int:
    """Return the wall time in microseconds."""
    return time.time_ns() // 1000


class Provider:
    """What the routes share. ``settings`` may be replaced while it runs."""

    def __init__(self, settings: SandboxSettings, store: Store) -> None:
        self.store = store
        self.plan = Plan(store)
        self.intake = Intake(store, settings, self.plan)
        self.released = asyncio.Event()
        self.progress = asyncio.Event()
        store.on_commit = self._progressed
        self._use(settings)
        self._bearer = f"Bearer {settings.api_key}".encode()
        if store.mark_once(f"profile:{settings.profile}:{settings.seed}"):
            self.plan.add(profile(settings.profile, settings.seed))

    def change(self, changes: Mapping[str, Any]) -> None:
        """Use other settings from now on. Raises ValueError or TypeError."""
        self._use(self.settings.changed(changes))

    def _use(self, settings: SandboxSettings) -> None:
        self.settings = self.intake.settings = settings
        self._limiter = Limiter(settings.rate, settings.burst)
        # An artificial latency leaves time for larger groups: fewer commits, no later answers.
        self.store.group_seconds = max(GROUP_SECONDS, min(0.01, settings.latency_ms / 2000))

    def release(self) -> None:
        """Let all held answers go."""
        self.released.set()
        self.released = asyncio.Event()

    def _progressed(self) -> None:
        self.progress.set()
        self.progress = asyncio.Event()

    def knows(self, request: web.BaseRequest) -> bool:
        """Whether the request carries the API key."""
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._bearer)

    def refused_for(self, units: int) -> float | None:
        """Take so many permits of the rate limit and return None, or return how many seconds to wait."""
        return self._limiter.refused_for(units, time.monotonic())

    async def turn_away(
        self, request: web.BaseRequest, shared: Request, keys: list[str]
    ) -> web.Response | None:
        """Return the 401 or 429 for a request that isn't let in, after recording it apart."""
        if not self.knows(request):
            problem, verdict, wait = _UNAUTHORIZED, Verdict.UNAUTHORIZED, None
        else:
            problem, verdict = _THROTTLED, Verdict.THROTTLED
            wait = self.refused_for(len(keys))
            if wait is None:
                return None
        for key in keys:
            stored = self.store.add(Arrival(*shared, key, None, verdict, problem.status))
            if key is keys[-1]:
                await stored
        return refuse(problem, wait)
