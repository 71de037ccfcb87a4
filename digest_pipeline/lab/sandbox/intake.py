"""The decision about one message: refuse it, repeat an earlier answer, or accept it.

Deciding and recording are one step without an await between them, so two requests with one key can
never both pass for the first.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.messages import Item, Problem
from digest_pipeline.lab.sandbox.plan import Plan
from digest_pipeline.lab.sandbox.records import Arrival, Earlier, Verdict
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.lab.sandbox.store import Store

FAULT_ANSWERS: dict[Fault, Problem] = {
    Fault.THROTTLED_429: Problem(429, "rate_limit_exceeded", "too many requests"),
    Fault.THROTTLED_429_DATE: Problem(429, "rate_limit_exceeded", "too many requests"),
    Fault.UNAVAILABLE_503: Problem(503, "service_unavailable", "not processed, try again"),
    Fault.RESET_BEFORE_ACCEPT: Problem(0, "", ""),
    Fault.INVALID_RECIPIENT_422: Problem(422, "invalid_recipient", "the address can't receive mail"),
    Fault.UNAUTHORIZED_401: Problem(401, "invalid_api_key", "the API key is not valid"),
    Fault.SERVER_ERROR_500_BEFORE_ACCEPT: Problem(500, "internal_server_error", "something went wrong"),
}
"""How the faults answer that accept nothing; status 0 gives no answer."""

_ANSWERED = {
    Fault.RESET_AFTER_ACCEPT: 0,
    Fault.TIMEOUT_AFTER_ACCEPT: 0,
    Fault.BAD_GATEWAY_502_AFTER_ACCEPT: 502,
    Fault.SERVER_ERROR_500_AFTER_ACCEPT: 500,
}
"""The status that hides an acceptance, where it isn't the true one."""

_CONCURRENT = Problem(409, "concurrent_idempotent_requests", "a request with this key is in progress")
_MISMATCH = Problem(409, "invalid_idempotent_request", "this key was used with another body")
_DUPLICATE = Problem(400, "duplicate_parameter", "this idempotency key was already used")


class Taken(NamedTuple):
    """What was decided about one message."""

    key: str
    verdict: Verdict
    message_id: str | None
    problem: Problem | None
    rule: Rule | None


class Request(NamedTuple):
    """What all messages of one request share."""

    number: int
    at_us: int
    route: str


class Intake:
    """Judges messages against the store, the settings and the fault plan."""

    def __init__(self, store: Store, settings: SandboxSettings, plan: Plan) -> None:
        self.settings = settings
        self._store, self._plan = store, plan
        self.in_flight: set[str] = set()
        """Keys whose answer is still on its way."""

    def rule_for(self, key: str) -> Rule | None:
        """Return the fault rule that hits the next request with this key; counts as a hit."""
        if not self._plan.rules:
            return None
        return self._plan.choose(key, len(self._store.earlier(key)) + 1)

    def take(
        self, request: Request, item: Item, idempotent: bool, rule: Rule | None
    ) -> tuple[Taken, asyncio.Future[None]]:
        """Decide and record; the future is done when the record is durable."""
        earlier = self._store.earlier(item.key) if item.key else []
        taken = self._judge(item, idempotent, earlier, request.at_us, rule)
        return taken, self._store.add(_arrival(request, item, len(earlier) + 1, taken))

    def skip(self, request: Request, item: Item, answer: Problem, rule: Rule | None) -> asyncio.Future[None]:
        """Record a message that wasn't processed because its whole batch met ``answer``."""
        attempt = len(self._store.earlier(item.key)) + 1
        taken = Taken(item.key, Verdict.FAULT, None, answer, rule)
        return self._store.add(_arrival(request, item, attempt, taken))

    def _judge(
        self, item: Item, idempotent: bool, earlier: list[Earlier], at_us: int, rule: Rule | None
    ) -> Taken:
        if rule is not None and not rule.fault.accepts:
            return Taken(item.key, Verdict.FAULT, None, FAULT_ANSWERS[rule.fault], rule)
        if item.problem is not None:
            return Taken(item.key, Verdict.INVALID, None, item.problem, rule)
        known = self._known(item, earlier, at_us, rule) if idempotent and item.key else None
        return known or Taken(item.key, Verdict.ACCEPTED, self._store.next_message_id(), None, rule)

    def _known(self, item: Item, earlier: list[Earlier], at_us: int, rule: Rule | None) -> Taken | None:
        if self.settings.idempotency is Idempotency.NONE:
            return None
        oldest = at_us - int(self.settings.key_lifetime * 1e6)
        first = next((row for row in reversed(earlier) if row.accepted and row.at_us > oldest), None)
        if self.settings.idempotency is Idempotency.REPLAYS and item.key in self.in_flight:
            return Taken(item.key, Verdict.IN_FLIGHT, None, _CONCURRENT, rule)
        if first is None:
            return None
        if self.settings.idempotency is Idempotency.REFUSES:
            return Taken(item.key, Verdict.DUPLICATE, None, _DUPLICATE, rule)
        if first.body_hash != item.body_hash:
            return Taken(item.key, Verdict.MISMATCH, None, _MISMATCH, rule)
        return Taken(item.key, Verdict.REPLAYED, first.message_id, None, rule)


def _arrival(request: Request, item: Item, attempt: int, taken: Taken) -> Arrival:
    rule = taken.rule
    accepted = taken.verdict is Verdict.ACCEPTED
    status = taken.problem.status if taken.problem else 200
    return Arrival(
        *request,
        operation_key=item.key,
        attempt=attempt,
        verdict=taken.verdict,
        status=_ANSWERED.get(rule.fault, status) if rule else status,
        accepted=int(accepted),
        fault=rule.fault if rule else None,
        rule=rule.id if rule else None,
        body_hash=item.body_hash,
        recipients=item.recipients,
        recipient_hash=item.recipient_hash,
        message_id=taken.message_id if accepted else None,
    )
