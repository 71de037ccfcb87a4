"""A file system of a few megabytes that can be filled to its last byte. Needs root and Linux."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MEGABYTES = 16


class SmallDisk:
    """A context manager around one mounted folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(self.folder)],
            check=True,
            capture_output=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        # Lazily: a child that was not reaped yet may still have the ledger open.
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)

    def emptied(self) -> Path:
        """Return the folder with nothing in it."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.folder

    def fill(self) -> None:
        """Leave no room for one more page."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def make_room(self) -> None:
        """Take the filler away."""
        self._filler.unlink(missing_ok=True)


def why_not() -> str | None:
    """Return why no small file system can be had here; None when it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a small file system can only be mounted by root on Linux"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with SmallDisk(Path(folder)):
                return None
        except (OSError, subprocess.CalledProcessError):
            return "this machine does not let a small file system be mounted"
