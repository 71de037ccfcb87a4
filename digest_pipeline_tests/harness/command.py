"""The ``digest`` command as people and programs meet it: a process with arguments, an environment and a folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 240
"""After which a command that hangs is ended, and its test fails."""


@dataclass(frozen=True)
class Said:
    """How a command ended. ``out`` is its result, ``err`` everything else it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The result, which must be one JSON value and nothing more."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that a refused command says; fails when there is more, or a traceback."""
        lines = [line for line in self.err.splitlines() if line]
        assert self.out == "", self.out
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        return lines[0]


@dataclass
class Shell:
    """A folder to stand in, with only these DIGEST_ and DAGSTER_ variables set."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, **changed: str) -> Said:
        """Run ``digest`` with these arguments; keywords are variables for this once."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("digest")), *arguments],
            cwd=self.folder,
            env=self.environment | changed,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("DIGEST_", "DAGSTER_"))
        }
        return kept | {"COLUMNS": "80", "NO_COLOR": "1"} | self.variables

    def files(self) -> dict[str, bytes]:
        """Return every file under the folder with its content."""
        return {
            str(p.relative_to(self.folder)): p.read_bytes()
            for p in sorted(self.folder.rglob("*"))
            if p.is_file()
        }


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
