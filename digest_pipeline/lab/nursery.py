"""Real processes that freeze, compose, send and clean a period, quick to start and easy to kill.

A nursery imports the package once and forks a child for each job; the children are ordinary
processes with connections of their own, which die of SIGKILL and stop of SIGSTOP like any other.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

PATIENCE = 120.0
_LOOK_EVERY = 0.002


@dataclass(frozen=True)
class Job:
    """What a child does: the whole of a period, or only the delivery of one that is frozen.

    ``fault`` is what DIGEST_FAULT would be; ``report`` is where the child writes what it did, or the
    error that ended it. ``clock`` names the file of a ``time_shift.Clock`` it lives by. ``imports`` are
    modules to import first, which may add kinds of gateways. ``again_for``: seconds for which a
    delivery starts again each time it is done.
    """

    ledger: str
    spec: str
    label: str
    run_id: str
    sender: str
    report: str
    fault: str | None = None
    only_deliver: bool = False
    clock: str | None = None
    imports: tuple[str, ...] = ()
    again_for: float = 0.0


@dataclass(frozen=True)
class End:
    """How a child ended: its exit code, or the signal that killed or stopped it."""

    code: int | None = None
    signal: int | None = None
    stopped: bool = False


class Child:
    """One running job."""

    def __init__(self, nursery: Nursery, pid: int, job: Job) -> None:
        self._nursery, self.pid, self.job = nursery, pid, job
        self._ended: End | None = None

    def wait(self) -> End:
        """Return how it ended, or that it has stopped. Raises TimeoutError."""
        end = self._look(PATIENCE)
        if end is None:
            raise TimeoutError(f"child {self.pid} has not ended: {self._nursery.last_words()}")
        return end

    def poll(self) -> End | None:
        """Return how it ended, or that it has stopped, if it has since it was last asked."""
        return self._look(0.0)

    def _look(self, patience: float) -> End | None:
        if self._ended is not None:
            return self._ended
        end = self._nursery.look(self.pid, patience)
        if end is not None and not end.stopped:
            self._ended = end
        return end

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self) -> End:
        """Kill it unless it has ended, and return how it did."""
        while (end := self.poll()) is None or end.stopped:
            self.send(signal.SIGKILL)
            end = self.wait()
        return end

    def report(self) -> dict[str, Any]:
        """Wait for its good end and return what it did."""
        end = self.wait()
        if end != End(code=0):
            raise AssertionError(f"the child ended with {end}: {self.said()} {self._nursery.last_words()}")
        return self.said()

    def said(self) -> dict[str, Any]:
        """Return what it has reported, or the error that ended it; empty if it was killed."""
        try:
            return cast(dict[str, Any], json.loads(Path(self.job.report).read_text(encoding="utf-8")))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}


class Nursery:
    """A context manager around the parent of all children; they end with it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "nursery.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "digest_pipeline.lab.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def start(self, job: Job) -> Child:
        """Start a job and return at once."""
        return Child(self, self._order("start", job=asdict(job))["pid"], job)

    def run(self, job: Job) -> dict[str, Any]:
        """Run a job to its good end and return what it did."""
        return self.start(job).report()

    def look(self, pid: int, patience: float) -> End | None:
        """Return how a child ended or stopped, within ``patience`` seconds; None if it runs on."""
        answer = self._order("look", pid=pid, patience=patience)
        return None if answer.pop("running", False) else End(**answer)

    def last_words(self) -> str:
        """Return the end of what the children wrote to standard error."""
        return self._log.read_text(errors="replace")[-3000:]

    def _order(self, name: str, **values: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"order": name, **values}).encode() + b"\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE + values.get("patience", 0.0))
        line = process.stdout.readline() if readable else b""
        if not line:
            raise TimeoutError(f"the nursery has not answered: {self.last_words()}")
        return cast(dict[str, Any], json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def work(job: Job) -> dict[str, Any]:
    """Do what a run of the pipeline does, in this process."""
    from digest_pipeline.cleanup.clean import clean
    from digest_pipeline.eligibility.compose import compose
    from digest_pipeline.eligibility.freeze import freeze
    from digest_pipeline.eligibility.source import Source
    from digest_pipeline.ledger.engine import Ledger
    from digest_pipeline.spec_loading import load_file

    digest = load_file(Path(job.spec))
    period = digest.period(job.label)
    with Ledger(job.ledger) as ledger, Source(digest.source.value()) as source:
        frozen = freeze(ledger, source, digest, period, job.run_id)
        ids = frozen.manifest_ids
        if not job.only_deliver:
            compose(ledger, source, digest, period, ids, job.run_id)
        done = _deliver(job, ledger, digest, ids)
        cleaned = 0 if job.only_deliver else clean(ledger, digest, ids, job.run_id)
    return {"created": frozen.created, **done, "cleaned": cleaned}


def _deliver(job: Job, ledger: Any, digest: Any, ids: tuple[int, ...]) -> dict[str, Any]:
    from digest_pipeline.delivery.plan import SendPlan
    from digest_pipeline.delivery.run import deliver, prepare
    from digest_pipeline.installation import make_gateway

    until = time.monotonic() + job.again_for
    while True:
        plan = SendPlan(digest, ids, make_gateway(digest), job.run_id, job.sender)
        ledger.transact(lambda conn, plan=plan: prepare(conn, plan))
        done = deliver(ledger, plan)
        if time.monotonic() >= until:
            break
        time.sleep(0.2)
    return {
        "accepted": done.accepted,
        "lost_claims": done.lost_claims,
        "expired": done.expired,
        "halted": done.halted,
        "out_of_time": done.out_of_time,
    }


def _child(job: Job) -> None:
    from digest_pipeline import faults, telemetry
    from digest_pipeline.lab.time_shift import Clock, live_by

    telemetry.configure_logging("ERROR")
    for module in job.imports:
        importlib.import_module(module)
    if job.clock is not None:
        live_by(Clock(Path(job.clock)))
    faults.arm(job.fault)
    try:
        report = work(job)
    except Exception as error:
        # The driver's own words: this is about a throw-away ledger.
        known = f"{type(error).__name__}: {getattr(error, 'orig', error)}"
        Path(job.report).write_text(json.dumps({"error": known}), encoding="utf-8")
        raise
    Path(job.report).write_text(json.dumps(report), encoding="utf-8")


def _start(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)  # the parent's answers go through standard output
        _child(job)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _look(pid: int, patience: float) -> dict[str, Any]:
    until = time.monotonic() + patience
    while True:
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if found:
            return asdict(_end(status))
        if time.monotonic() >= until:
            return {"running": True}
        time.sleep(_LOOK_EVERY)


def _end(status: int) -> End:
    if os.WIFSTOPPED(status):
        return End(signal=os.WSTOPSIG(status), stopped=True)
    if os.WIFSIGNALED(status):
        return End(signal=os.WTERMSIG(status))
    return End(code=os.WEXITSTATUS(status))


def main() -> None:
    """Obey one order a line, answer one line each, until standard input closes."""
    # What our parent ignores is inherited, and a child must die of what it is sent. (Dagster gives SIGTERM the
    # handler of SIGINT, and a shell ignores SIGINT in whatever it starts in the background.)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # All that a child needs, imported before the first fork: what is imported here starts no thread.
    import aiohttp  # noqa: F401
    import alembic.config  # noqa: F401
    import psycopg  # noqa: F401
    from sqlalchemy.dialects import postgresql, sqlite  # noqa: F401

    import digest_pipeline.cleanup.clean
    import digest_pipeline.delivery.run
    import digest_pipeline.eligibility.compose
    import digest_pipeline.eligibility.freeze
    import digest_pipeline.installation
    import digest_pipeline.lab.time_shift
    import digest_pipeline.ledger.migrate  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        if order["order"] == "start":
            job = Job(**order["job"] | {"imports": tuple(order["job"]["imports"])})
            answer: dict[str, Any] = {"pid": _start(job)}
        else:
            answer = _look(order["pid"], order["patience"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
