"""What the harness needs of a provider: the sandbox's, and the shape in which a team brings its own.

``digest lab crash --provider package.module:Class`` makes one ``Class(folder)`` for each worker, with a
folder of its own. A class for your own gateway
- adds the gateway's kind to ``gateways.registry.KINDS`` when its module is imported (the workers import it, too);
- runs a provider that can be killed and remembers what it accepted: your provider's own simulator, or a
  stub in a process of its own that writes a row before it answers;
- answers ``acceptances`` from that memory and never from the ledger: it is what the verdict rests on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol, cast

from digest_pipeline.errors import InputError
from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.lab.crash.cells import Can
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings


class Trouble(StrEnum):
    """What a provider can be told to do with the next request under some keys."""

    LOST_ANSWER = "lost_answer"
    """Accept it, and drop the connection before the answer."""
    LOST_REQUEST = "lost_request"
    """Read it, accept nothing, and drop the connection."""
    THROTTLED = "throttled"
    """429."""
    UNAVAILABLE = "unavailable"
    """503, documented as not processed."""
    REFUSED = "refused"
    """A verdict about the recipient."""


class Provider(Protocol):
    """One provider process that the harness may kill. Started again, it goes on with the same memory."""

    cans: frozenset[Can]
    """The capabilities it can play."""
    troubles: frozenset[Trouble]
    """What it can be scripted to do; ``LOST_ANSWER`` and ``LOST_REQUEST`` at least."""
    forgets_keys: bool
    """Whether ``forget_keys`` works."""

    def start(self) -> None:
        """Start it, or start it again on the same memory and address; return once it answers."""
        ...

    def stop(self) -> None:
        """End it; does nothing if it isn't running."""
        ...

    def kill(self) -> None:
        """End it with SIGKILL, with whatever is under way."""
        ...

    def reset(self, can: Can) -> None:
        """Forget every message and script, and behave from now on as ``can`` says."""
        ...

    def gateway(self, can: Can) -> tuple[str, Mapping[str, str]]:
        """Return the gateway's kind and settings as a specification has them, for this capability."""
        ...

    def script(self, trouble: Trouble, keys: Sequence[str]) -> None:
        """Let the next send under each of these keys meet a trouble; where the gateway asks instead of
        sending, ``THROTTLED`` and ``UNAVAILABLE`` meet the next question about it, too.
        """
        ...

    def forget_keys(self) -> None:
        """Let the lifetime of every idempotency key be over."""
        ...

    def acceptances(self) -> Iterable[tuple[str, str]]:
        """Return (operation key, message id) of each message it took responsibility for."""
        ...

    def requests(self, keys: Sequence[str] | None = None) -> int:
        """Return how many sends it has judged since the reset: of these keys, or of all."""
        ...


class SandboxProvider:
    """The sandbox: everything a provider can do, and go wrong."""

    cans = frozenset(Can)
    troubles = frozenset(Trouble)
    forgets_keys = True

    _FAULTS: Mapping[Trouble, Fault] = {
        Trouble.LOST_ANSWER: Fault.RESET_AFTER_ACCEPT,
        Trouble.LOST_REQUEST: Fault.RESET_BEFORE_ACCEPT,
        Trouble.THROTTLED: Fault.THROTTLED_429,
        Trouble.UNAVAILABLE: Fault.UNAVAILABLE_503,
        Trouble.REFUSED: Fault.INVALID_RECIPIENT_422,
    }

    def __init__(self, folder: Path) -> None:
        self.process = SandboxProcess(folder / "provider.db", SandboxSettings(latency_ms=20))

    def start(self) -> None:
        """Start it on its store."""
        self.process.start()

    def stop(self) -> None:
        """End it."""
        self.process.stop()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def reset(self, can: Can) -> None:
        """Empty its store and take its scripts out of force."""
        self.process.change(
            idempotency=Idempotency.REPLAYS if can is Can.REPLAYS else Idempotency.NONE,
            look_up=can is Can.LOOK_UP,
            key_lifetime=SandboxSettings().key_lifetime,
        )
        self.process.control.reset()

    def gateway(self, can: Can) -> tuple[str, Mapping[str, str]]:
        """Return the sandbox's kind, with the switches that say the same."""
        settings = {"url": self.process.url, "api_key": self.process.settings.api_key}
        if can is not Can.REPLAYS:
            settings["idempotency"] = "none"
        if can is not Can.LOOK_UP:
            settings["look_up"] = "false"
        return "sandbox", settings

    def script(self, trouble: Trouble, keys: Sequence[str]) -> None:
        """Hit the next judged request of each key, and as many questions."""
        control, fault, oracle = self.process.control, self._FAULTS[trouble], self.process.oracle()
        control.script(*(Rule(fault, keys=[key], attempts=oracle.attempts(key) + 1) for key in keys))
        if trouble in (Trouble.THROTTLED, Trouble.UNAVAILABLE):
            control.script(Rule(fault, route="look_up", next=len(keys)))

    def forget_keys(self) -> None:
        """Let keys live for a microsecond from now on."""
        self.process.change(key_lifetime=0.000001)

    def acceptances(self) -> Iterable[tuple[str, str]]:
        """Read the store."""
        return ((one.operation_key, one.message_id) for one in self.process.oracle().acceptances())

    def requests(self, keys: Sequence[str] | None = None) -> int:
        """Count judged requests in the store."""
        oracle = self.process.oracle()
        if keys is not None:
            return sum(oracle.attempts(key) for key in keys)
        return sum(count for verdict, count in oracle.verdicts().items() if verdict in _JUDGED)


_JUDGED = frozenset({"accepted", "replayed", "duplicate", "mismatch", "in_flight", "invalid", "fault"})

Maker = Callable[[Path], Provider]


def find_provider(name: str | None) -> tuple[Maker, tuple[str, ...]]:
    """Return the class that ``package.module:Class`` names, and the modules a worker imports for it.

    Raises InputError when there is no such class.
    """
    if name is None:
        return SandboxProvider, ()
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"--provider {name}: no such class (package.module:Class)") from error
    return cast(Maker, found), (module,)
