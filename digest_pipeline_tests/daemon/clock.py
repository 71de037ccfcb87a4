"""A clock that a test moves, for a whole site: PostgreSQL's, and that of every Python process.

The server runs under libfaketime; Python processes read the same file through ``time_machine``, because
libfaketime and Python's own waiting do not go together. The machine's clock is left alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from digest_pipeline.lab.postgres import PostgresServer, running_postgres

_HERE = Path(__file__).parent
LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1")


def library() -> Path | None:
    """Return libfaketime, Debian's package ``faketime``; None where it is not installed."""
    found = (path for pattern in LIBRARIES for path in sorted(Path("/").glob(pattern[1:])))
    return next(found, None)


class MovedClock:
    """How far the site's clock is from the machine's, in a file that all its processes follow."""

    def __init__(self, folder: Path, now: datetime) -> None:
        self.file = folder / "offset"
        self.set(now)

    def set(self, now: datetime) -> None:
        """Let it be that time now; it runs on from there. Followed within a second or so."""
        self._write(now.timestamp() - time.time())

    def pass_seconds(self, seconds: float) -> None:
        """Let it be that much later."""
        self._write(float(self.file.read_text()) + seconds)

    def _write(self, offset: float) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(f"{offset:+.3f}\n", encoding="utf-8")
        new.chmod(0o644)  # PostgreSQL runs as somebody else
        new.replace(self.file)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a Python process, and all that it starts, follow."""
        path = [str(_HERE / "moved_clock"), str(_HERE.parents[1])]
        return {"DIGEST_TEST_CLOCK": str(self.file), "PYTHONPATH": os.pathsep.join(path)}


@contextmanager
def postgres_by(clock: MovedClock, library: Path) -> Iterator[PostgresServer]:
    """Run a PostgreSQL of one's own whose clock is the moved one."""
    fake = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock.file),
        "FAKETIME_CACHE_DURATION": "1",
    }
    before = {name: os.environ.get(name) for name in fake}
    running = running_postgres()
    os.environ.update(fake)
    try:
        server = running.__enter__()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        yield server
    finally:
        running.__exit__(None, None, None)
