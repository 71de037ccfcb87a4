"""One installation and its daemon, from one moved instant to the next, and what has become of it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import dagster as dg
import pytest
from sqlalchemy.exc import DBAPIError

from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.daemon.clock import MovedClock, library, postgres_by
from digest_pipeline_tests.harness.rim import Rim, rim_at
from digest_pipeline_tests.harness.site import Site, site_at

PATIENCE = 600.0
HURRY = 6.0
"""Seconds that pass at once, about three times a second: a sensor's minute takes three."""
T = TypeVar("T")


@dataclass
class Story:
    """A digest whose schedule and sensors are on, and the clock they run by."""

    clock: MovedClock
    rim: Rim
    site: Site
    instance: dg.DagsterInstance

    def runs(self, week: str | None = None) -> list[dg.DagsterRun]:
        """Return the runs of the digest's job, oldest first: all of them, or those of one week."""
        found = [run for run in reversed(self.instance.get_runs()) if run.job_name == "tiny_digest_weekly"]
        if week is None:
            return found
        return [run for run in found if run.tags["dagster/partition"] == f"{week}-1"]

    def wait_for(self, what: str, found: Callable[[], T | None], *, hurry: bool = True) -> T:
        """Return what ``found`` returns once it is something. Raises TimeoutError with the daemon's last words.

        While no run is under way the site's time passes faster: sensors have intervals, and leases have not
        begun.
        """
        deadline = time.monotonic() + PATIENCE
        while not (value := self._asked(found)):
            if time.monotonic() > deadline:
                runs = [(run.status.value, run.tags) for run in self.runs()]
                raise TimeoutError(f"{what}: never\n{runs}\n{self.site.last_words()}")
            time.sleep(0.3)
            if hurry and all(run.is_finished for run in self.runs()):
                self.clock.pass_seconds(HURRY)
        return value

    @staticmethod
    def _asked(found: Callable[[], T | None]) -> T | None:
        try:
            return found()
        except DBAPIError:
            # The server ends a session for which, by its clock, minutes passed inside a transaction.
            return None

    def finished(self, week: str, count: int = 1) -> list[dg.DagsterRun]:
        """Return a week's runs once at least so many have been started and all of those have ended."""

        def ended() -> list[dg.DagsterRun] | None:
            runs = self.runs(week)
            return runs if len(runs) >= count and all(run.is_finished for run in runs) else None

        return self.wait_for(f"{count} finished runs of {week}", ended)

    def ticked(self, *sensors: str) -> None:
        """Return once each of these sensors has been evaluated from now on, twice."""
        since = self.site_time()

        def seen() -> bool:
            states = {state.instigator_name: state for state in self.instance.all_instigator_state()}
            return all(
                len(
                    self.instance.get_ticks(
                        states[name].instigator_origin_id, states[name].selector_id, after=since
                    )
                )
                >= 2
                for name in sensors
            )

        self.wait_for(f"ticks of {', '.join(sensors)}", seen)

    def site_time(self) -> float:
        """Return the site's time, as a timestamp."""
        return time.time() + float(self.clock.file.read_text())

    def run_by_hand(self, week: str) -> int:
        """Have a person type ``digest run`` on the site; return its exit status."""
        command = [
            str(Path(sys.executable).parent / "digest"),
            "run",
            "--digest",
            "tiny_digest",
            "--period",
            week,
        ]
        return subprocess.run(command, env=self.site.environment, cwd=self.site.home, check=False).returncode

    def accepted(self) -> dict[str, int]:
        """Return how often the provider accepted each operation key; notifications apart."""
        counted = Counter(one.operation_key for one in self.rim.sandbox.oracle().acceptances())
        return {key: times for key, times in counted.items() if not key.startswith("incident/")}

    def mailed(self) -> list[str]:
        """Return the notifications that the provider accepted."""
        keys = (one.operation_key for one in self.rim.sandbox.oracle().acceptances())
        return [key for key in keys if key.startswith("incident/")]


def keys_of(rim: Rim, *weeks: str, customers: int) -> dict[str, int]:
    """Return every customer's key in each of these weeks, once."""
    return {rim.key_of(number, week): 1 for week in weeks for number in range(1, customers + 1)}


@contextmanager
def story_from(
    now: datetime,
    folder: Path,
    sandbox: SandboxProcess,
    patch: pytest.MonkeyPatch,
    days: Sequence[str],
    **spec: Any,
) -> Iterator[Story]:
    """Start code server and daemon at a moved instant; customers have something to read on each of ``days``."""
    preload = library()
    if preload is None:
        pytest.skip("libfaketime is not installed: apt-get install faketime")
    with ExitStack() as stack:
        # Apart from pytest's folders, which are closed to others: PostgreSQL has to read the clock's file.
        shared = Path(stack.enter_context(TemporaryDirectory()))
        shared.chmod(0o755)
        clock = MovedClock(shared, now)
        server = stack.enter_context(postgres_by(clock, preload))
        ledger, storage = (stack.enter_context(server.database()) for _ in range(2))
        with rim_at(folder, ledger, sandbox, patch, days=days, automatic=True, **spec) as rim:
            with site_at(folder, storage, processes=(), environment=clock.environment) as site:
                site.start("bare-code-server")
                _wait_until_open(site)
                clock.set(now)
                site.start("daemon")
                with site.instance(patch) as instance:
                    story = Story(clock, rim, site, instance)
                    story.wait_for("the schedule's start", instance.all_instigator_state, hurry=False)
                    yield story


def _wait_until_open(site: Site) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", site.port("code-server")), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(site.last_words()) from None
            time.sleep(0.2)
        else:
            return
