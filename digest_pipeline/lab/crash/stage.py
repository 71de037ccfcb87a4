"""Where cells play: what one worker of the harness has, and the small period that each cell has of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import update

from digest_pipeline.lab.crash.cells import Can, Cell, Engine, Harm
from digest_pipeline.lab.crash.period import (
    CUSTOMERS,
    LABEL,
    PAST_THE_LEASE,
    key_of,
    write_source,
    write_spec,
)
from digest_pipeline.lab.crash.provider import Maker
from digest_pipeline.lab.crash.small_disk import SmallDisk
from digest_pipeline.lab.nursery import Child, Job, Nursery
from digest_pipeline.lab.postgres import PostgresServer, running_postgres
from digest_pipeline.lab.time_shift import Clock, pass_time
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.dialects import ledger_now
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import ledger_identity
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import load_file


class Stage:
    """What one worker of the harness keeps from cell to cell. A context manager; one cell at a time."""

    def __init__(
        self,
        folder: Path,
        make_provider: Maker,
        imports: tuple[str, ...] = (),
        customers: int = CUSTOMERS,
    ) -> None:
        self.folder, self.imports, self.customers = folder, imports, customers
        self.provider = make_provider(folder)
        self._stack = ExitStack()
        self._cells = 0

    def __enter__(self) -> Stage:
        try:
            self.nursery = self._stack.enter_context(Nursery(self.folder))
            self.provider.start()
            self._stack.callback(self.provider.stop)
            write_source(self.folder, self.customers)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def server(self) -> PostgresServer:
        """A PostgreSQL server that no other worker uses: some cells restart it."""
        return self._stack.enter_context(running_postgres())

    @cached_property
    def small_disk(self) -> SmallDisk:
        """A file system that is quickly full."""
        return self._stack.enter_context(SmallDisk(self.folder / "small"))

    @cached_property
    def _sqlite_template(self) -> Path:
        path = self.folder / "template.db"
        with Ledger(f"sqlite:///{path}") as ledger:
            migrate.upgrade(ledger, "lab")
        return path

    @cached_property
    def _postgres_template(self) -> str:
        url = self.server.create_database()
        with Ledger(url) as ledger:
            migrate.upgrade(ledger, "lab")
        return url

    @contextmanager
    def case(self, cell: Cell, **changes: Any) -> Iterator[Case]:
        """Lend a fresh period for one cell; ``changes`` merge into its specification."""
        self._cells += 1
        folder = self.folder / f"cell-{self._cells}"
        folder.mkdir()
        self.provider.reset(cell.can)
        spec = self.write_spec(folder, cell.can, **changes)
        with self._ledger(cell, folder) as url:
            case = Case(self, cell, folder, url, spec, load_file(spec))
            try:
                yield case
            finally:
                # One that still stands still would hold its locks, and the files that the next cell takes away.
                for child in case.children:
                    child.end()
        shutil.rmtree(folder, ignore_errors=True)

    def write_spec(self, folder: Path, can: Can, **changes: Any) -> Path:
        """Write the period's specification for a capability of this stage's gateway."""
        return write_spec(folder, self.folder, self.provider.gateway(can), **changes)

    @contextmanager
    def _ledger(self, cell: Cell, folder: Path) -> Iterator[str]:
        if cell.engine is Engine.POSTGRESQL:
            with self.server.database(template=self._postgres_template) as url:
                adopt(url)
                yield url
            return
        place = folder / "ledger.db"
        if cell.harm is Harm.DISK_FULL:
            place = self.small_disk.emptied() / "ledger.db"
        shutil.copyfile(self._sqlite_template, place)
        adopt(f"sqlite:///{place}")
        yield f"sqlite:///{place}"


def adopt(url: str) -> None:
    """Make a copy of the template the ledger of this place, as ``digest db rebind`` would."""
    with Ledger(url) as ledger, ledger.write() as conn:
        # Born now: no host has seen anything of it, whatever had this place before.
        conn.execute(
            update(ledger_identity).values(fingerprint=migrate.fingerprint(conn), created_at=ledger_now())
        )


@dataclass
class Case:
    """One cell's period, the processes that work on it, and time that passes at once."""

    stage: Stage
    cell: Cell
    folder: Path
    url: str
    spec: Path
    digest: Digest
    runs: int = 0
    reports: list[dict[str, Any]] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    asleep: list[Clock] = field(default_factory=list)
    """Clocks of processes that stand still: time passes for them, too."""
    passed: float = 0.0

    @property
    def expected(self) -> list[str]:
        """The keys of everybody who must be accounted for."""
        return [key_of(number) for number in range(1, self.stage.customers + 2)]

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self.url)

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Open the ledger for a moment: a connection kept would be one more that a fault can end."""
        try:
            yield self._ledger
        finally:
            self._ledger.close()

    def start(self, fault: str | None = None, **job: Any) -> tuple[Child, Clock]:
        """Start one run of the period, to be disturbed by ``fault``, and return it with its clocks.

        ``job`` changes what the run does, as the fields of a ``Job``.
        """
        self.runs += 1
        run = f"run-{self.runs}"
        clock = Clock(self.folder / f"{run}.clock")
        fields: dict[str, Any] = {
            "ledger": self.url,
            "spec": str(self.spec),
            "label": LABEL,
            "run_id": run,
            "sender": "s1",
            "report": str(self.folder / f"{run}.json"),
            "fault": fault,
            "clock": str(clock.path),
            "imports": self.stage.imports,
        }
        self.children.append(self.stage.nursery.start(Job(**fields | job)))
        return self.children[-1], clock

    def run(self, **job: Any) -> None:
        """Do one run that nothing disturbs. Raises AssertionError when it fails all the same."""
        child, _ = self.start(**job)
        self.reports.append(child.report())

    def pass_time(self, seconds: float = PAST_THE_LEASE) -> None:
        """Let time pass for the ledger, and for every process that stands still."""
        self.passed += seconds
        with self.ledger() as ledger:
            pass_time(ledger, seconds)
        for clock in self.asleep:
            clock.shift(running=seconds)
