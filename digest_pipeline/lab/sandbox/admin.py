"""The side of the sandbox that tests, demos and benchmarks use: ``/admin/...``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from digest_pipeline.lab.sandbox.answers import answer, refuse
from digest_pipeline.lab.sandbox.faults import Rule
from digest_pipeline.lab.sandbox.messages import Problem
from digest_pipeline.lab.sandbox.provider import Provider

MAX_PAGE = 1000

_ARRIVALS = """
SELECT id, request, at_us, route, operation_key, attempt, verdict, status, accepted, fault,
       lower(hex(body_hash)) AS body_hash, recipients, lower(hex(recipient_hash)) AS recipient_hash, message_id
FROM arrival WHERE id > ? AND (? IS NULL OR operation_key = ?) AND accepted >= ? ORDER BY id LIMIT ?
"""
_NAMES = (
    "id",
    "request",
    "at_us",
    "route",
    "operation_key",
    "attempt",
    "verdict",
    "status",
    "accepted",
    "fault",
    "body_hash",
    "recipients",
    "recipient_hash",
    "message_id",
)


class Admin:
    """Scripts and reads one provider. Needs the API key, as the public routes do."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._routes: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[Any]]] = {
            ("POST", "/admin/reset"): self._reset,
            ("POST", "/admin/release"): self._release,
            ("GET", "/admin/settings"): self._settings,
            ("PATCH", "/admin/settings"): self._change,
            ("GET", "/admin/faults"): self._rules,
            ("POST", "/admin/faults"): self._script,
            ("DELETE", "/admin/faults"): self._clear,
            ("GET", "/admin/statistics"): self._statistics,
            ("GET", "/admin/arrivals"): self._arrivals,
            ("GET", "/admin/acceptances"): self._acceptances,
            ("GET", "/admin/wait"): self._wait,
        }

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer with JSON: 401 without the key, 404 for no such route, 400 with the reason."""
        if not self._provider.knows(request):
            return refuse(Problem(401, "invalid_api_key", "the API key is not valid"))
        found = self._routes.get((request.method, request.path))
        if found is None:
            return refuse(Problem(404, "not_found", "no such admin route"))
        try:
            return answer(200, await found(request))
        except (ValueError, TypeError, KeyError) as error:
            return refuse(Problem(400, "bad_request", str(error)))

    async def _reset(self, request: web.BaseRequest) -> Any:
        self._provider.release()
        self._provider.store.empty()
        self._provider.plan.forget()
        return {}

    async def _release(self, request: web.BaseRequest) -> Any:
        self._provider.release()
        return {}

    async def _settings(self, request: web.BaseRequest) -> Any:
        return self._provider.settings.public()

    async def _change(self, request: web.BaseRequest) -> Any:
        self._provider.change(json.loads(await request.read()))
        return self._provider.settings.public()

    async def _rules(self, request: web.BaseRequest) -> Any:
        return {"rules": [rule.to_json() for rule in self._provider.plan.rules]}

    async def _script(self, request: web.BaseRequest) -> Any:
        rules = [Rule.from_json(rule) for rule in json.loads(await request.read())["rules"]]
        return {"ids": self._provider.plan.add(rules)}

    async def _clear(self, request: web.BaseRequest) -> Any:
        self._provider.plan.clear()
        return {}

    async def _statistics(self, request: web.BaseRequest) -> Any:
        store = self._provider.store
        return {
            "arrivals": store.arrivals,
            "accepted": store.accepted,
            "in_flight": len(self._provider.intake.in_flight),
            "verdicts": dict(store.rows("SELECT verdict, count(*) FROM arrival GROUP BY 1", ())),
            "faults": dict(store.rows("SELECT fault, count(*) FROM arrival WHERE rule > 0 GROUP BY 1", ())),
        }

    async def _arrivals(self, request: web.BaseRequest) -> Any:
        return {"data": self._page(request, least=0)}

    async def _acceptances(self, request: web.BaseRequest) -> Any:
        return {"data": self._page(request, least=1)}

    def _page(self, request: web.BaseRequest, least: int) -> list[dict[str, Any]]:
        query = request.query
        after, limit = int(query.get("after", 0)), min(int(query.get("limit", 100)), MAX_PAGE)
        key = query.get("key")
        rows = self._provider.store.rows(_ARRIVALS, (after, key, key, least, limit))
        return [dict(zip(_NAMES, row, strict=True)) for row in rows]

    async def _wait(self, request: web.BaseRequest) -> Any:
        """Answer once so many arrivals and acceptances are durable, or with ``reached`` false."""
        query, store = request.query, self._provider.store
        arrivals, accepted = int(query.get("arrivals", 0)), int(query.get("accepted", 0))
        with suppress(TimeoutError):
            async with asyncio.timeout(float(query.get("timeout", 30))):
                while store.arrivals < arrivals or store.accepted < accepted:
                    await self._provider.progress.wait()
        reached = store.arrivals >= arrivals and store.accepted >= accepted
        return {"reached": reached, "arrivals": store.arrivals, "accepted": store.accepted}
