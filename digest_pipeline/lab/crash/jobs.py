"""Running many cells: side by side, each worker with a stage of its own."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from digest_pipeline.lab.crash import small_disk
from digest_pipeline.lab.crash.cells import Cell, Facilities
from digest_pipeline.lab.crash.cells import Sequence as NamedSequence
from digest_pipeline.lab.crash.provider import Maker, Trouble
from digest_pipeline.lab.crash.result import Result, run_cell
from digest_pipeline.lab.crash.sequences import NEXT_TRY
from digest_pipeline.lab.crash.stage import Stage
from digest_pipeline.lab.postgres import server_is_given

Tell = Callable[[Result], None]


def facilities(make_provider: Maker) -> Facilities:
    """Return what this machine and a provider allow."""
    with tempfile.TemporaryDirectory(prefix="digest-crash-") as folder:
        provider = make_provider(Path(folder))
    sequences = frozenset(
        one for one in NamedSequence if one not in NEXT_TRY or NEXT_TRY[one] in provider.troubles
    )
    return Facilities(
        no_small_disk=small_disk.why_not(),
        no_server_restart="the server that was given is not ours to restart" if server_is_given() else None,
        cans=provider.cans,
        sequences=sequences
        if {Trouble.LOST_ANSWER, Trouble.LOST_REQUEST} <= provider.troubles
        else frozenset(),
        forgets_keys=provider.forgets_keys,
    )


@dataclass(frozen=True, slots=True)
class Workshop:
    """How cells are run: which provider, what its workers import, where broken cells are kept."""

    make_provider: Maker
    imports: tuple[str, ...] = ()
    keep: Path | None = None

    def run(self, cells: Sequence[Cell], jobs: int, tell: Tell = lambda _: None) -> list[Result]:
        """Run the cells that are not skipped, ``jobs`` at once, and return their results in order.

        ``tell`` hears of each as it ends. Raises what keeps a worker from starting at all.
        """
        todo: queue.SimpleQueue[tuple[int, Cell]] = queue.SimpleQueue()
        for place, cell in enumerate(cell for cell in cells if cell.skip is None):
            todo.put((place, cell))
        results: dict[int, Result] = {}
        errors: list[BaseException] = []
        workers = [
            threading.Thread(target=self._work, args=(todo, results, errors, tell), name=f"crash-{number}")
            for number in range(min(jobs, todo.qsize()))
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException as error:
            errors.append(error)  # Ctrl-C: each ends its cell and tidies up
            raise
        finally:
            for worker in workers:
                worker.join()
        if errors:
            raise errors[0]
        return [results[place] for place in sorted(results)]

    def _work(
        self,
        todo: queue.SimpleQueue[tuple[int, Cell]],
        results: dict[int, Result],
        errors: list[BaseException],
        tell: Tell,
    ) -> None:
        try:
            with ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="digest-crash-"))
                stage = stack.enter_context(Stage(Path(folder), self.make_provider, self.imports))
                while not errors:
                    try:
                        place, cell = todo.get_nowait()
                    except queue.Empty:
                        return
                    results[place] = run_cell(stage, cell, self.keep)
                    tell(results[place])
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            errors.append(error)
