"""The sandbox provider as a child process that can be killed, paused and started again."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from digest_pipeline.lab.sandbox.command import API_KEY_VARIABLE, arguments
from digest_pipeline.lab.sandbox.control import SandboxControl
from digest_pipeline.lab.sandbox.oracle import Oracle
from digest_pipeline.lab.sandbox.settings import SandboxSettings

START_SECONDS = 30.0


class SandboxProcess:
    """A context manager around one server process; the port stays the same over restarts.

    ``url`` and ``control`` are valid once it was started. The child ends with this process.
    """

    def __init__(self, store: Path, settings: SandboxSettings | None = None) -> None:
        self.store = store
        self.settings = settings or SandboxSettings()
        self.ready: Mapping[str, Any] = {}
        """What the server said when it was ready."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base URL of the API, without a slash at the end."""
        return f"http://{self.settings.host}:{self.settings.port}"

    @property
    def control(self) -> SandboxControl:
        """A client of the admin side."""
        return SandboxControl(self.url, self.settings.api_key)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._running().pid

    def oracle(self) -> Oracle:
        """Return a reader of the store; works whether or not the server runs."""
        return Oracle(self.store)

    def start(self) -> Self:
        """Start and wait until it answers. Raises RuntimeError with its last words."""
        command = [sys.executable, "-m", *self._module(), "--until-stdin-closes"]
        command += ["--store", str(self.store), *arguments(self.settings)]
        environment = os.environ | {API_KEY_VARIABLE: self.settings.api_key}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        self.ready = self._ready_line(self._process)
        port = int(str(self.ready["url"]).rpartition(":")[2])
        self.settings = replace(self.settings, port=port)
        return self

    def change(self, **settings: Any) -> None:
        """Change switches now and for later restarts."""
        self.control.change(**settings)
        self.settings = self.settings.changed(settings)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it with SIGTERM; does nothing if it isn't running."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it if it runs, then start on the same store and port."""
        if self._process is not None:
            self.kill()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and silent."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _module(self) -> list[str]:
        """Return which module serves, and the options that it needs beside the sandbox's."""
        return ["digest_pipeline.lab.sandbox"]

    @property
    def _log(self) -> Path:
        return self.store.with_name(self.store.name + ".log")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the sandbox is not running")
        return self._process

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._running(), None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a frozen process would never see SIGTERM
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _ready_line(self, process: subprocess.Popen[bytes]) -> Mapping[str, Any]:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        line = process.stdout.readline() if readable else b""
        if not line:
            self.kill()
            last_words = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the sandbox did not start: {last_words}")
        found: Mapping[str, Any] = json.loads(line)
        return found
