"""A client of the sandbox's admin side, for code that isn't asynchronous."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from digest_pipeline.lab.sandbox.faults import Rule


class ControlError(Exception):
    """The sandbox refused an order; the text is its reason."""


class SandboxControl:
    """Scripts and reads a running sandbox at ``url``. Raises ControlError and OSError."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url, self._api_key = url, api_key
        # An empty handler: a proxy in the environment must not see requests for this host.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def script(self, *rules: Rule) -> list[int]:
        """Add fault rules behind those in force; returns their ids."""
        ids: list[int] = self._call("POST", "faults", {"rules": [_wire(rule) for rule in rules]})["ids"]
        return ids

    def rules(self) -> list[Rule]:
        """Return the rules in force, with their hits."""
        return [Rule.from_json(rule) for rule in self._call("GET", "faults")["rules"]]

    def clear_faults(self) -> None:
        """Take all rules out of force."""
        self._call("DELETE", "faults")

    def change(self, **settings: Any) -> dict[str, Any]:
        """Change switches until the server's process ends; returns all settings."""
        return self._call("PATCH", "settings", settings)

    def reset(self) -> None:
        """Forget every arrival and every rule, and release what is held."""
        self._call("POST", "reset")

    def order(self, route: str, body: Any) -> None:
        """Give an order that only one kind of server knows."""
        self._call("POST", route, body)

    def release(self) -> None:
        """Let the answers go that ``held_after_accept`` holds."""
        self._call("POST", "release")

    def statistics(self) -> dict[str, Any]:
        """Return arrivals, accepted, in_flight, and counts by verdict and by fault."""
        return self._call("GET", "statistics")

    def acceptances(self, key: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield what was accepted, oldest first, page by page."""
        return self._pages("acceptances", key)

    def arrivals(self, key: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield every arrival, oldest first, page by page."""
        return self._pages("arrivals", key)

    def wait(self, *, arrivals: int = 0, accepted: int = 0, timeout: float = 30.0) -> None:
        """Return once that many are in the store since it was emptied. Raises TimeoutError."""
        query = urlencode({"arrivals": arrivals, "accepted": accepted, "timeout": timeout})
        found = self._call("GET", f"wait?{query}", timeout=timeout + 10)
        if not found["reached"]:
            raise TimeoutError(f"the sandbox has {found['arrivals']} arrivals, {found['accepted']} accepted")

    def _pages(self, route: str, key: str | None) -> Iterator[dict[str, Any]]:
        query: dict[str, Any] = {"after": 0, "limit": 500} | ({"key": key} if key is not None else {})
        while page := self._call("GET", f"{route}?{urlencode(query)}")["data"]:
            yield from page
            query["after"] = page[-1]["id"]

    def _call(self, method: str, route: str, body: Any = None, timeout: float = 30.0) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._url}/admin/{route}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._api_key}"},
        )
        try:
            with self._opener.open(request, timeout=timeout) as response:
                found: dict[str, Any] = json.loads(response.read())
                return found
        except urllib.error.HTTPError as error:
            with error:
                raise ControlError(error.read().decode("utf-8", "replace")) from None


def _wire(rule: Rule) -> dict[str, Any]:
    return {name: value for name, value in rule.to_json().items() if name not in ("id", "base", "hits")}
