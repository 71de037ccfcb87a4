"""The three public routes: one message, many messages, and asking about a key."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from digest_pipeline.lab.sandbox.answers import answer, distort, problem_body, refuse
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.intake import FAULT_ANSWERS, Request, Taken
from digest_pipeline.lab.sandbox.messages import Item, Problem, read_message
from digest_pipeline.lab.sandbox.provider import Provider, now_us
from digest_pipeline.lab.sandbox.records import Arrival, Verdict

MAX_BATCH = 500

_ITEM_FAULTS = frozenset({Fault.INVALID_RECIPIENT_422})
"""Faults that concern one message of a batch; any other is the fate of the whole request."""


class Routes:
    """Each method answers one request. Latency counts from the request's arrival."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._loop = asyncio.get_running_loop()

    def _request(self, route: str) -> tuple[Request, float]:
        due = self._loop.time() + self._provider.settings.latency_ms / 1000
        return Request(self._provider.store.next_request(), now_us(), route), due

    async def send(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take one message: ``POST /v1/messages``."""
        provider, intake = self._provider, self._provider.intake
        shared, due = self._request("send")
        body = await request.read()
        given = request.headers.get("Idempotency-Key", "")
        item = read_message(body, given or request.headers.get("X-Operation-Key", ""))
        if refused := await provider.turn_away(request, shared, [item.key]):
            return refused
        taken, stored = intake.take(shared, item, bool(given), intake.rule_for(item.key))
        return await self._answer(request, [taken], _single(taken), stored, taken.rule, due)

    async def send_batch(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take up to 500 messages, one JSON object per line: ``POST /v1/messages/batch``."""
        shared, due = self._request("batch")
        lines = (await request.read()).splitlines()
        items = [read_message(line, "") for line in lines]
        if refused := await self._provider.turn_away(request, shared, [item.key for item in items]):
            return refused
        if not 1 <= len(items) <= MAX_BATCH or not all(item.key for item in items):
            return refuse(Problem(422, "validation_error", "1 to 500 messages, each with an operation key"))
        rules = self._rules(items)
        whole = next((rule for rule in rules.values() if rule.fault not in _ITEM_FAULTS), None)
        if whole is not None and not whole.fault.accepts:
            return await self._refuse_batch(request, shared, items, rules, whole, due)
        takes = [self._provider.intake.take(shared, i, True, rules.get(i.key)) for i in items]
        taken = [one for one, _ in takes]
        return await self._answer(request, taken, _batch(taken, whole), takes[-1][1], whole, due)

    def _rules(self, items: list[Item]) -> dict[str, Rule]:
        """Return what hits whom, up to the first message whose fault is the whole request's."""
        found: dict[str, Rule] = {}
        for item in items:
            if rule := self._provider.intake.rule_for(item.key):
                found[item.key] = rule
                if rule.fault not in _ITEM_FAULTS:
                    break
        return found

    async def _refuse_batch(
        self,
        request: web.BaseRequest,
        shared: Request,
        items: list[Item],
        rules: dict[str, Rule],
        whole: Rule,
        due: float,
    ) -> web.StreamResponse:
        refusal = FAULT_ANSWERS[whole.fault]
        hit = next(key for key, rule in rules.items() if rule is whole)
        skip = self._provider.intake.skip
        stored = [skip(shared, item, refusal, whole if item.key == hit else None) for item in items][-1]
        for rule in rules.values():
            rule.hits -= rule is not whole  # it will hit when the batch comes again
        return await self._answer(request, [], refuse(refusal), stored, whole, due)

    async def _answer(
        self,
        request: web.BaseRequest,
        taken: list[Taken],
        true: web.Response,
        stored: asyncio.Future[None],
        rule: Rule | None,
        due: float,
    ) -> web.StreamResponse:
        """Answer once the record is durable and the latency has passed."""
        in_flight = self._provider.intake.in_flight
        held = [one.key for one in taken if one.verdict is not Verdict.IN_FLIGHT]
        in_flight.update(held)
        try:
            wait = due - self._loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            # The group's future is shared: a client that leaves must not cancel it for the others.
            stored.result() if stored.done() else await asyncio.shield(stored)
            return true if rule is None else await distort(rule, request, true, self._provider.released)
        finally:
            in_flight.difference_update(held)

    async def look_up(self, request: web.BaseRequest) -> web.StreamResponse:
        """List the messages accepted under a key: ``GET /v1/messages?key=``."""
        provider = self._provider
        shared, due = self._request("look_up")
        key = request.query.get("key", "")
        if refused := await provider.turn_away(request, shared, [key]):
            return refused
        if not provider.settings.look_up:
            return refuse(Problem(404, "not_found", "this provider can't be asked by key"))
        rule = provider.plan.choose(key, 0, "look_up")
        status = FAULT_ANSWERS[rule.fault].status if rule and not rule.fault.accepts else 200
        fault, number = (rule.fault, rule.id) if rule else (None, None)
        stored = provider.store.add(
            Arrival(*shared, key, None, Verdict.LOOKED_UP, status, fault=fault, rule=number)
        )
        return await self._answer(request, [], self._listed(key, shared.at_us, rule), stored, rule, due)

    def _listed(self, key: str, at_us: int, rule: Rule | None) -> web.Response:
        if rule is not None and not rule.fault.accepts:
            return refuse(FAULT_ANSWERS[rule.fault])
        settings = self._provider.settings
        since, until = int(settings.retention * 1e6), int(settings.visibility_delay * 1e6)
        found = self._provider.store.found(key, at_us - since, at_us - until)
        data = [{"id": message, "operation_key": key, "status": "accepted"} for message in found]
        return answer(200, {"data": data})


def _single(taken: Taken) -> web.Response:
    if taken.problem is not None:
        return refuse(taken.problem)
    headers = {"Content-Type": "application/json"}
    if taken.verdict is Verdict.REPLAYED:
        headers["Idempotent-Replayed"] = "true"
    return web.Response(body=b'{"id": "%b"}' % str(taken.message_id).encode(), headers=headers)


def _batch(taken: list[Taken], whole: Rule | None) -> web.Response:
    results = [_result(one) for one in taken]
    if whole is not None and whole.fault is Fault.SHORT_BATCH_ANSWER:
        results.pop()
    if whole is not None and whole.fault is Fault.SHUFFLED_BATCH_ANSWER:
        results.reverse()
    return answer(200, {"data": results})


def _result(taken: Taken) -> dict[str, Any]:
    if taken.problem is not None:
        return {"key": taken.key, "status": taken.problem.status, "error": problem_body(taken.problem)}
    replayed = taken.verdict is Verdict.REPLAYED
    return {"key": taken.key, "status": 200, "id": taken.message_id, "replayed": replayed}
