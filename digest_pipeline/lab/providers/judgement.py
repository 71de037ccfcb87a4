"""What an emulated provider decides about one call, and the record of it.

Deciding and recording are one step without an await between them, so two calls under one key can
never both pass for the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiohttp import web

from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.lab.providers.calls import CallStore
from digest_pipeline.lab.providers.emulation import Call, Emulation, Incoming, Refusal, Result
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.intake import Request
from digest_pipeline.lab.sandbox.provider import Provider
from digest_pipeline.lab.sandbox.records import Arrival, Verdict

FAULT_REFUSALS: dict[Fault, Refusal] = {
    Fault.THROTTLED_429: Refusal.THROTTLED,
    Fault.THROTTLED_429_DATE: Refusal.THROTTLED,
    Fault.UNAVAILABLE_503: Refusal.UNAVAILABLE,
    Fault.RESET_BEFORE_ACCEPT: Refusal.ERROR,
    Fault.INVALID_RECIPIENT_422: Refusal.RECIPIENT,
    Fault.UNAUTHORIZED_401: Refusal.CREDENTIAL,
    Fault.SERVER_ERROR_500_BEFORE_ACCEPT: Refusal.ERROR,
}
"""What the faults that accept nothing say, where they say anything."""

VERDICTS = {
    Refusal.CREDENTIAL: Verdict.UNAUTHORIZED,
    Refusal.THROTTLED: Verdict.THROTTLED,
    Refusal.IN_FLIGHT: Verdict.IN_FLIGHT,
    Refusal.MISMATCH: Verdict.MISMATCH,
    Refusal.DUPLICATE: Verdict.DUPLICATE,
}
"""How the store names what is no plain refusal."""

_OF_ONE_MESSAGE = frozenset({Fault.INVALID_RECIPIENT_422})
_SILENT = frozenset({Fault.RESET_BEFORE_ACCEPT, Fault.RESET_AFTER_ACCEPT, Fault.TIMEOUT_AFTER_ACCEPT})


class Sending(NamedTuple):
    """One call that was let in. ``rules`` say which fault hits whom; ``whole`` hits the whole call."""

    call: Call
    shared: Request
    messages: Sequence[Incoming]
    rules: Mapping[str, Rule]
    whole: Rule | None

    def rule(self, message: Incoming) -> Rule | None:
        """Return what hits a message when the whole call has one fate."""
        found = self.rules.get(message.key)
        return found if found is self.whole else None


class Judged(NamedTuple):
    """The true answer to a call, and the key that is in flight until that has left."""

    answer: web.Response
    in_flight: str | None = None


class Judge:
    """Judges calls against the store, the settings and the fault plan."""

    def __init__(self, provider: Provider, emulation: Emulation, store: CallStore) -> None:
        self._provider, self._emulation, self._store = provider, emulation, store

    def sending(self, call: Call, shared: Request, messages: Sequence[Incoming]) -> Sending:
        """Return the call with the faults that hit it, up to the first that is the whole call's."""
        rules: dict[str, Rule] = {}
        for message in messages:
            if rule := self._provider.intake.rule_for(message.key):
                rules[message.key] = rule
                if rule.fault not in _OF_ONE_MESSAGE:
                    return Sending(call, shared, messages, rules, rule)
        return Sending(call, shared, messages, rules, None)

    def judge(self, sent: Sending) -> Judged:
        """Decide and record."""
        whole = sent.whole
        refusal = FAULT_REFUSALS[whole.fault] if whole and not whole.fault.accepts else None
        if refusal is None and any(message.refusal is Refusal.MALFORMED for message in sent.messages):
            refusal = Refusal.MALFORMED
        if refusal is not None:
            for rule in sent.rules.values():
                rule.hits -= rule is not whole  # it will hit when its message comes again
            return self._refuse(sent, refusal)
        return self._known(sent) or self._take_all(sent)

    def _known(self, sent: Sending) -> Judged | None:
        """Return what a repeated call gets, or None for one that isn't a repeat."""
        key, settings = self._idempotency_key(sent.call), self._provider.settings
        if not key:
            return None
        if settings.idempotency is Idempotency.REPLAYS and key in self._provider.intake.in_flight:
            return self._refuse(sent, Refusal.IN_FLIGHT)
        earlier = self._store.earlier_call(key, sent.shared.at_us - int(settings.key_lifetime * 1e6))
        if earlier is None:
            return None
        if settings.idempotency is Idempotency.REFUSES:
            return self._refuse(sent, Refusal.DUPLICATE)
        if earlier.body_hash != hashlib.sha256(sent.call.body).digest():
            return self._refuse(sent, Refusal.MISMATCH)
        for message in sent.messages:
            self._record(sent, message, Verdict.REPLAYED, earlier.status, sent.rule(message))
        answer = web.Response(status=earlier.status, body=earlier.answer, content_type="application/json")
        return Judged(answer, key)

    def _idempotency_key(self, call: Call) -> str | None:
        if self._provider.settings.idempotency is Idempotency.NONE:
            return None
        return self._emulation.idempotency_key(call)

    def _take_all(self, sent: Sending) -> Judged:
        results = [self._take(sent, place, message) for place, message in enumerate(sent.messages)]
        true = self._emulation.answer(sent.call, results)
        key = self._idempotency_key(sent.call)
        if key and any(result.refusal is None for result in results):
            body = true.body if isinstance(true.body, bytes) else b""
            self._store.add_call(key, sent.shared.at_us, sent.call.body, true.status, body)
        return Judged(self._told(sent, results, true), key)

    def _take(self, sent: Sending, place: int, message: Incoming) -> Result:
        rule = sent.rules.get(message.key)
        refusal = message.refusal
        if rule is not None and rule.fault in _OF_ONE_MESSAGE:
            refusal = FAULT_REFUSALS[rule.fault]
        if refusal is not None:
            self._record(sent, message, Verdict.FAULT if rule else Verdict.INVALID, 0, rule)
            return Result(place, message, "", refusal)
        message_id = self._emulation.message_id(self._store.next_message_id())
        self._record(sent, message, Verdict.ACCEPTED, 200, rule, message_id)
        if message.reference and message.reference != message.key:
            self._store.add_reference(message.reference, message.key)
        return Result(place, message, message_id, None)

    def _told(self, sent: Sending, results: Sequence[Result], true: web.Response) -> web.Response:
        """Return what the faults with this provider's own wording make of the true answer."""
        match sent.whole.fault if sent.whole else None:
            case Fault.SERVER_ERROR_500_AFTER_ACCEPT:
                return self._emulation.refuse(sent.call, Refusal.ERROR)
            case Fault.SHORT_BATCH_ANSWER if len(results) > 1:
                return self._emulation.answer(sent.call, results[:-1])
            case Fault.SHUFFLED_BATCH_ANSWER if len(results) > 1:
                return self._emulation.answer(sent.call, results[::-1])
        return true

    def _refuse(self, sent: Sending, refusal: Refusal) -> Judged:
        answer = self._emulation.refuse(sent.call, refusal)
        faulty = sent.whole is not None and not sent.whole.fault.accepts
        verdict = Verdict.FAULT if faulty else VERDICTS.get(refusal, Verdict.INVALID)
        for message in sent.messages:
            self._record(sent, message, verdict, answer.status, sent.rule(message))
        return Judged(answer)

    def _record(
        self,
        sent: Sending,
        message: Incoming,
        verdict: Verdict,
        status: int,
        rule: Rule | None,
        message_id: str | None = None,
    ) -> None:
        recipients = "\n".join(message.recipients).encode("utf-8", "surrogatepass")
        arrival = Arrival(
            *sent.shared,
            operation_key=message.key,
            attempt=len(self._store.earlier(message.key)) + 1,
            verdict=verdict,
            status=0 if rule and rule.fault in _SILENT else status,
            accepted=int(verdict is Verdict.ACCEPTED),
            fault=rule.fault if rule else None,
            rule=rule.id if rule else None,
            body_hash=hashlib.sha256(message.body).digest(),
            recipients=len(message.recipients),
            recipient_hash=hashlib.sha256(recipients).digest(),
            message_id=message_id,
        )
        self._store.add(arrival)
