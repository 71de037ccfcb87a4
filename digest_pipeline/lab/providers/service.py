"""What every emulated provider does with a request: let it in, have it judged, answer it.

An answer leaves only after what it says is committed to the store. Latency counts from the
request's arrival.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from aiohttp import web

from digest_pipeline.lab.providers.calls import CallStore
from digest_pipeline.lab.providers.emulation import Call, Emulation, Refusal, Route
from digest_pipeline.lab.providers.judgement import FAULT_REFUSALS, VERDICTS, Judge, Judged
from digest_pipeline.lab.sandbox.admin import Admin
from digest_pipeline.lab.sandbox.answers import distort
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.intake import Request
from digest_pipeline.lab.sandbox.provider import Provider, now_us
from digest_pipeline.lab.sandbox.records import Arrival, Verdict


class Service:
    """Answers every request to one emulated provider."""

    def __init__(self, provider: Provider, emulation: Emulation, store: CallStore) -> None:
        self._provider, self._emulation, self._store = provider, emulation, store
        self._judge = Judge(provider, emulation, store)
        self._admin = Admin(provider)
        self._loop = asyncio.get_running_loop()

    async def dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if request.path.startswith("/admin/"):
            return await self._admin.handle(request)
        due = self._loop.time() + self._provider.settings.latency_ms / 1000
        number, at_us = self._store.next_request(), now_us()
        body = await request.read()
        call = Call(request.method, request.path, request.raw_path, request.query, request.headers, body)
        route = self._emulation.route(call)
        if route is None:
            return self._emulation.refuse(call, Refusal.NO_ROUTE)
        shared = Request(number, at_us, route)
        judged, rule = (self._send if route is Route.SEND else self._look_up)(call, shared)
        return await self._answer(request, judged, rule, due)

    def _send(self, call: Call, shared: Request) -> tuple[Judged, Rule | None]:
        read = self._emulation.read(call)
        messages = [] if isinstance(read, Refusal) else read
        if turned_away := self._turned_away(call, shared, [message.key for message in messages]):
            return Judged(turned_away), None
        if isinstance(read, Refusal):
            return Judged(self._emulation.refuse(call, read)), None
        sent = self._judge.sending(call, shared, messages)
        return self._judge.judge(sent), sent.whole

    def _turned_away(self, call: Call, shared: Request, keys: Sequence[str]) -> web.Response | None:
        """Return the answer for a call that isn't let in, recorded apart; None lets it in."""
        wait = None
        refusal = Refusal.CREDENTIAL
        if self._emulation.knows(call, self._provider.settings.api_key):
            refusal = Refusal.THROTTLED
            wait = self._provider.refused_for(max(1, len(keys)))
            if wait is None:
                return None
        answer = self._emulation.refuse(call, refusal)
        if wait is not None:
            answer.headers["Retry-After"] = str(math.ceil(wait))
        for key in keys:
            self._store.add(Arrival(*shared, key, None, VERDICTS[refusal], answer.status))
        return answer

    def _look_up(self, call: Call, shared: Request) -> tuple[Judged, Rule | None]:
        reference = self._emulation.asked(call)
        key = self._store.referred_to(reference)
        if turned_away := self._turned_away(call, shared, [key]):
            return Judged(turned_away), None
        rule = self._provider.plan.choose(key, 0, "look_up")
        answer = self._found(call, reference, key, shared.at_us, rule)
        fault, number = (rule.fault, rule.id) if rule else (None, None)
        self._store.add(
            Arrival(*shared, key, None, Verdict.LOOKED_UP, answer.status, fault=fault, rule=number)
        )
        return Judged(answer), rule

    def _found(self, call: Call, reference: str, key: str, at_us: int, rule: Rule | None) -> web.Response:
        if rule is not None and not rule.fault.accepts:
            return self._emulation.refuse(call, FAULT_REFUSALS[rule.fault])
        if rule is not None and rule.fault is Fault.SERVER_ERROR_500_AFTER_ACCEPT:
            return self._emulation.refuse(call, Refusal.ERROR)
        settings = self._provider.settings
        since, until = int(settings.retention * 1e6), int(settings.visibility_delay * 1e6)
        return self._emulation.listed(call, reference, self._store.found(key, at_us - since, at_us - until))

    async def _answer(
        self, request: web.BaseRequest, judged: Judged, rule: Rule | None, due: float
    ) -> web.StreamResponse:
        in_flight = self._provider.intake.in_flight
        held = {judged.in_flight} if judged.in_flight else set()
        in_flight.update(held)
        try:
            if (wait := due - self._loop.time()) > 0:
                await asyncio.sleep(wait)
            await self._store.committed()
            if rule is None or rule.fault is Fault.SERVER_ERROR_500_AFTER_ACCEPT:
                return judged.answer
            return await distort(rule, request, judged.answer, self._provider.released)
        finally:
            in_flight.difference_update(held)
