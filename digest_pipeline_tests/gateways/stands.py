"""For each kind of gateway, a provider to test it against, and how to put that in a situation.

A new adapter adds its stand here; the contract suite fails for a kind without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.harness.sandbox import API_KEY, running_sandbox


class Situation(Enum):
    ACCEPTS = auto()
    REFUSES_THE_RECIPIENT = auto()
    REFUSES_THE_ACCOUNT = auto()
    THROTTLES = auto()
    IS_UNREACHABLE = auto()
    RESETS_AFTER_ACCEPTING = auto()
    SILENT_AFTER_ACCEPTING = auto()
    UNREADABLE_AFTER_ACCEPTING = auto()
    FAILS_AFTER_ACCEPTING = auto()


class Stand(Protocol):
    """One provider. ``arrange`` holds for the next requests; ``accepted`` is the provider's own count."""

    def arrange(self, situation: Situation) -> None: ...

    def gateway(self) -> Gateway: ...

    def accepted(self, operation_key: str) -> int: ...


SANDBOX_FAULTS = {
    Situation.REFUSES_THE_RECIPIENT: Fault.INVALID_RECIPIENT_422,
    Situation.REFUSES_THE_ACCOUNT: Fault.UNAUTHORIZED_401,
    Situation.THROTTLES: Fault.THROTTLED_429,
    Situation.RESETS_AFTER_ACCEPTING: Fault.RESET_AFTER_ACCEPT,
    Situation.SILENT_AFTER_ACCEPTING: Fault.TIMEOUT_AFTER_ACCEPT,
    Situation.UNREADABLE_AFTER_ACCEPTING: Fault.TRUNCATED_JSON_AFTER_ACCEPT,
    Situation.FAILS_AFTER_ACCEPTING: Fault.SERVER_ERROR_500_AFTER_ACCEPT,
}


class SandboxStand:
    def __init__(self, process: SandboxProcess) -> None:
        self._process = process

    def arrange(self, situation: Situation) -> None:
        if situation is Situation.IS_UNREACHABLE:
            self._process.stop()
        elif situation in SANDBOX_FAULTS:
            self._process.control.script(Rule(SANDBOX_FAULTS[situation], next=1))

    def gateway(self) -> Gateway:
        settings = {"url": self._process.url, "api_key": API_KEY, "time_out": "500ms"}
        return registry.create("sandbox", settings)

    def accepted(self, operation_key: str) -> int:
        return sum(1 for _ in self._process.oracle().acceptances(operation_key))


@contextmanager
def sandbox_stand(folder: Path) -> Iterator[Stand]:
    with running_sandbox(folder) as process:
        yield SandboxStand(process)


STANDS: dict[str, Callable[[Path], AbstractContextManager[Stand]]] = {"sandbox": sandbox_stand}
