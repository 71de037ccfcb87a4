"""A progress bar for a period that is being sent: what the ledger says, a few times a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy.exc import SQLAlchemyError

from digest_pipeline.cli.output import say
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

EVERY = 0.3


@contextmanager
def period_progress(ledger: Ledger, digest: Digest, period: Period) -> Iterator[None]:
    """Show how many deliveries are settled while the block runs; silent without a terminal."""
    if not say.is_terminal:
        yield
        return
    done = threading.Event()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=say, transient=True) as progress:
        task = progress.add_task(f"{digest.name} {period.label}", total=None, note="freezing")

        def follow() -> None:
            while not done.wait(EVERY):
                try:
                    with ledger.read() as conn:
                        settled, total = reads.progress(conn, digest.name, period.label)
                except SQLAlchemyError:
                    continue  # a bar may miss a beat; the run itself reports what is wrong
                note = "sending" if total else "freezing"
                progress.update(task, completed=settled, total=total or None, note=note)

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            done.set()
            follower.join()
