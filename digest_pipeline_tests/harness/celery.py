"""Celery workers on machines of a test's network, runs whose steps they take, and what both have said.

deployment/servers.py makes a cluster:

with Network(tmp_path) as network, cluster(tmp_path, network, {"tiny_digest": {}}) as deployed:
    deployed.await_workers(deployed.add_worker("one", 1))
    run = deployed.launch("tiny_digest", "2025-W10")
    assert run.wait(), deployed.told()
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from sqlalchemy import text

from digest_pipeline.defs.names import job_name, period_tag
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.spec import Digest
from digest_pipeline_tests.harness.network import Machine, Network

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE = 240.0

QUICK_REDELIVERY: Mapping[str, Any] = {
    "visibility_timeout": 20,
    "unacked_restore_interval": 1,
    "unacked_mutex_expire": 5,
}
"""Seconds, so that a test can wait for what takes hours in the field."""


def wait_until(what: str, holds: Callable[[], bool], said: Callable[[], str] = str) -> None:
    """Return once it holds. Raises TimeoutError with what was waited for, and with what ``said`` returns."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain until {what}\n{said()}")
        time.sleep(0.1)


@dataclass
class Program:
    """A program that runs on a machine, and its log. ``name``: for a run of Dagster's, its tag ``test/run``."""

    process: subprocess.Popen[Any]
    log: Path
    name: str

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def wait(self) -> bool:
        """Return whether it ended well."""
        return self.process.wait(PATIENCE) == 0


@dataclass
class Cluster:
    """The servers in the hub, the machines, and what the test may ask from outside of all of them."""

    network: Network
    sandbox: SandboxProcess
    ledger: Ledger
    digests: Mapping[str, Digest]
    instance: dg.DagsterInstance
    customers: str
    variables: Mapping[str, str]
    specs: Path
    machines: dict[str, Machine] = field(default_factory=dict)

    def add_worker(self, name: str, number: int) -> Program:
        """Start a machine with one worker process for every queue; return at once."""
        self._add_machine(name, number)
        command = ["dagster-celery", "worker", "start", "-A", "dagster_celery.app", "-n", name]
        command += ["-y", str(self.network.disk / "celery.yaml"), "-i", "digest_pipeline.definitions"]
        # One -q: of several Celery takes the last, whatever dagster-celery's help says.
        command += ["-q", "senders,dagster", "--", "--concurrency=1", "--without-gossip", "--without-mingle"]
        return self._start(name, "worker", command)

    def await_workers(self, *workers: Program) -> None:
        """Return once they take tasks."""
        for worker in workers:
            wait_until(
                "a worker is ready",
                lambda worker=worker: (
                    " ready." in worker.log.read_text() or worker.process.poll() is not None
                ),  # type: ignore[misc]
                worker.said,
            )
            assert worker.process.poll() is None, worker.said()

    def launch(self, name: str, label: str, *assets: str) -> Program:
        """Start a run of a digest's period, or of some of its assets, from a machine without a worker."""
        digest = self.digests[name]
        if "desk" not in self.machines:
            self._add_machine("desk", 100)
        command = ["dagster", "job", "execute", "-m", "digest_pipeline.definitions", "-j", job_name(digest)]
        period = digest.period(label)
        run = f"run-{secrets.token_hex(4)}"
        tags = {"dagster/partition": period.partition_key, "test/run": run} | period_tag(digest, period)
        command += ["--tags", json.dumps(tags)]
        if assets:
            command += ["--op-selection", ",".join(f"{name}__{asset}" for asset in assets)]
        return self._start("desk", run, command)

    def lose(self, name: str) -> None:
        """End a machine, without a word to anybody."""
        self.machines.pop(name).lose()

    def logs(self, run: Program, *types: dg.DagsterEventType) -> Sequence[dg.EventLogEntry]:
        """Return what a run has logged so far, or its events of some types."""
        records = self.instance.get_run_records(dg.RunsFilter(tags={"test/run": run.name}))
        return self.instance.all_logs(records[0].dagster_run.run_id, of_type=set(types)) if records else []

    def times_begun(self, run: Program, step: str) -> int:
        """Return how often the work of a step of a run has begun; ``step`` is the end of its name."""
        begun = self.logs(run, dg.DagsterEventType.STEP_START)
        return sum((entry.step_key or "").endswith(step) for entry in begun)

    def hosts_of(self, run: Program, step: str) -> list[str]:
        """Return the machines that have taken a step of a run, one for each time."""
        found = []
        for entry in self.logs(run, dg.DagsterEventType.ENGINE_EVENT):
            event = entry.dagster_event
            if event is not None and (event.step_key or "").endswith(step):
                worker = event.engine_event_data.metadata.get("Celery worker")
                if worker is not None:
                    found.append(str(worker.value).partition("@")[0])
        return found

    def told(self) -> str:
        """Return the end of what every run and worker has said, for a test that fails."""
        logs = sorted(self.specs.parent.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def sql(self, statement: str, **values: Any) -> Any:
        """Ask or change the ledger by raw SQL."""
        with self.ledger.write() as conn:
            result = conn.execute(text(statement), values)
            return result.all() if result.returns_rows else []

    def _start(self, name: str, what: str, command: list[str]) -> Program:
        disk = self.network.disk_of(name)
        log = disk.parent.parent / f"{name}-{what}.log"
        with log.open("wb") as file:
            process = self.machines[name].start(
                command, env=self.variables, folder=self.network.disk / "work", log=file
            )
        return Program(process, log, what)

    def _add_machine(self, name: str, number: int) -> None:
        disk = self.network.disk_of(name)
        for folder in ("dagster", "digest", "logs", "specs", "tmp", "work"):
            (disk / folder).mkdir()
        shutil.copy(DEPLOY / "dagster.yaml", disk / "dagster" / "dagster.yaml")
        shutil.copytree(self.specs, disk / "specs", dirs_exist_ok=True)
        workers = yaml.safe_load((DEPLOY / "celery" / "celery.yaml").read_text())
        workers["execution"]["config"]["config_source"]["broker_transport_options"] |= QUICK_REDELIVERY
        (disk / "celery.yaml").write_text(yaml.safe_dump(workers), encoding="utf-8")
        self.machines[name] = self.network.machine(name, number)
