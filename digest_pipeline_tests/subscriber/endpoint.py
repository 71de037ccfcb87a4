"""The events and unsubscribe routes on a real server, in a process of its own."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from digest_pipeline_tests.subscriber.posts import Post

_DEADLINE = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str


@dataclass
class Endpoint:
    """A server that runs. ``send`` is one request on a connection of its own."""

    process: subprocess.Popen[bytes]
    port: int

    def send(self, method: str, path: str, post: Post | None = None) -> Answer:
        found = post or Post(b"")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_DEADLINE)
        try:
            connection.request(method, path, found.body, found.headers)
            answer = connection.getresponse()
            return Answer(
                answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
            )
        finally:
            connection.close()

    def report(self, provider: str, post: Post) -> int:
        """Let a provider call; return the status it gets."""
        return self.send("POST", f"/events/{provider}", post).status

    def kill(self) -> None:
        """SIGKILL: nothing more runs in it."""
        self.process.kill()
        self.process.wait(_DEADLINE)


@contextmanager
def served(ledger_url: str, **variables: str) -> Iterator[Endpoint]:
    """Serve the routes for a ledger, with these variables set."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        mine = {name: text for name, text in os.environ.items() if not name.startswith("DIGEST_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "digest_pipeline_tests.subscriber.endpoint", str(listener.fileno())],
            cwd=Path(__file__).parents[2],
            env={**mine, **variables, "DIGEST_LEDGER_URL": ledger_url},
            pass_fds=[listener.fileno()],
        )
        endpoint = Endpoint(process, listener.getsockname()[1])
        try:
            yield endpoint
        finally:
            endpoint.kill()


def main() -> None:
    """Serve on a listening socket that was inherited: its queue holds requests until we are up."""
    import uvicorn
    from starlette.applications import Starlette

    from digest_pipeline.ledger.engine import Ledger
    from digest_pipeline.settings import Settings
    from digest_pipeline.subscriber import unsubscribe
    from digest_pipeline.subscriber.events.routes import routes

    settings = Settings.from_environment()
    ledger = Ledger(settings.ledger_url)
    app = Starlette(routes=[*routes(ledger, settings), *unsubscribe.routes(ledger, settings)])
    uvicorn.run(app, fd=int(sys.argv[1]), log_level="warning")


def until(holds: object, seconds: float = 30.0) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.01)


if __name__ == "__main__":
    main()
