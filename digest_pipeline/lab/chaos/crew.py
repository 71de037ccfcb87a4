"""The workers of a chaos run: real processes that send from one ledger, each replaced when it ends."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from digest_pipeline.lab.chaos.schedule import Act, Action
from digest_pipeline.lab.crash.provider import SandboxProvider
from digest_pipeline.lab.crash.stage import Case
from digest_pipeline.lab.nursery import Child, End
from digest_pipeline.lab.sandbox.faults import Rule

KILLED = End(signal=signal.SIGKILL)


@dataclass
class Crew:
    """Some workers, and what was done to them. ``done`` counts what really happened, by kind."""

    case: Case
    provider: SandboxProvider
    places: int
    working_for: float
    done: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """How runs ended that ended by themselves with an error, by its kind: a lost database, mostly."""
    _workers: dict[int, Child] = field(default_factory=dict)
    _wake_at: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """Fill every place."""
        for place in range(self.places):
            self._hire(place)

    def do(self, action: Action) -> None:
        """Do one action, to whoever has the place now."""
        match action.act:
            case Act.KILL:
                self._kill(action.worker)
            case Act.PAUSE:
                self._pause(action.worker, action.seconds)
            case Act.PROVIDER_FAULT:
                assert action.fault is not None
                control = self.provider.process.control
                control.clear_faults()
                control.script(Rule(action.fault, share=action.share, seed=action.seed, attempts=2))
                self.done[action.act] += 1
            case Act.PROVIDER_KILL:
                self.provider.kill()
                self.provider.start()
                self.done[action.act] += 1
            case Act.DATABASE_RESTART:
                self.case.stage.server.crash_and_restart()
                self.done[action.act] += 1

    def look_after(self) -> None:
        """Wake those whose pause is over, and replace those who have ended."""
        now = time.monotonic()
        for place in [place for place, at in self._wake_at.items() if at <= now]:
            self._wake(place)
        for place, child in list(self._workers.items()):
            end = child.poll()
            if end is not None and not end.stopped:
                self._note_end(child, end)
                self._hire(place)

    def next_wake(self) -> float | None:
        """Return when the next pause ends, on the monotonic clock."""
        return min(self._wake_at.values(), default=None)

    def end(self) -> None:
        """Kill everybody, as a machine that goes away would."""
        self._wake_at.clear()
        for child in self._workers.values():
            child.end()
        self._workers.clear()

    def _hire(self, place: int) -> None:
        child, _ = self.case.start(sender=f"place-{place}", only_deliver=True, again_for=self.working_for)
        self._workers[place] = child

    def _kill(self, place: int) -> None:
        child = self._workers[place]
        self._wake_at.pop(place, None)  # a stopped process dies of SIGKILL like any other
        self.done[Act.KILL] += child.end() == KILLED
        self._hire(place)

    def _pause(self, place: int, seconds: float) -> None:
        if place in self._wake_at:
            return  # it is stopped already
        self._workers[place].send(signal.SIGSTOP)
        self._wake_at[place] = time.monotonic() + seconds
        self.done[Act.PAUSE] += 1

    def _wake(self, place: int) -> None:
        del self._wake_at[place]
        self._workers[place].send(signal.SIGCONT)

    def _note_end(self, child: Child, end: End) -> None:
        said = str(child.said().get("error", end))
        self.failures[said.partition(":")[0]] += end.code != 0
