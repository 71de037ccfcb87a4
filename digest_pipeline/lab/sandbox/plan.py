"""The fault rules in force, and which of them hits a request."""

from __future__ import annotations

import json

from digest_pipeline.lab.sandbox.faults import Rule
from digest_pipeline.lab.sandbox.store import Store


class Plan:
    """Chooses at most one rule per request; the first that wants it, in the order they were added.

    Rules and their hits are in the store, so a killed server goes on with the plan where it was.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new_keys = store.count_new_keys()
        hits = store.hits_by_rule()
        self.rules: list[Rule] = []
        for number, text in store.rules():
            rule = Rule.from_json(json.loads(text))
            rule.id, rule.hits = number, hits.get(number, 0)
            self.rules.append(rule)

    def add(self, rules: list[Rule]) -> list[int]:
        """Put rules behind those in force; returns their ids once they are stored."""
        self._new_keys = self._store.count_new_keys()
        for rule in rules:
            rule.hits, rule.base = 0, self._new_keys
            rule.id = self._store.add_rule(json.dumps(rule.to_json()))
        self.rules += rules
        return [rule.id for rule in rules]

    def clear(self) -> None:
        """Drop all rules. What they hit stays recorded."""
        self._store.drop_rules()
        self.rules = []

    def forget(self) -> None:
        """Start again, after the store was emptied."""
        self.rules, self._new_keys = [], 0

    def choose(self, key: str, attempt: int, route: str = "send") -> Rule | None:
        """Return the rule that hits this request, and count the hit. Batches are sends."""
        if not self.rules:
            return None
        if attempt == 1:
            self._new_keys += 1
        for rule in self.rules:
            if rule.route == route and rule.wants(key, attempt, self._new_keys):
                rule.hits += 1
                return rule
        return None
