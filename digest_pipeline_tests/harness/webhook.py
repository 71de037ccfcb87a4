"""A real HTTP receiver of notifications, that can fail in the ways that receivers fail."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DROP = 0
"""In place of a status: close the connection without an answer."""
SILENT = -1
"""In place of a status: take the request and say nothing until the receiver is closed."""


@dataclass
class Receiver:
    """What came, in order. ``answers`` are statuses, used in turn; afterwards every answer is 204."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    @property
    def kinds(self) -> dict[str, int]:
        """Return how many requests came, by kind and subject."""
        return dict(Counter(f"{one['kind']} {one['subject']}" for one in self.told))

    @property
    def keys(self) -> list[str]:
        return [one["Idempotency-Key"] for one in self.headers]


@contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    """Listen on a free port until the end of the block."""
    state = Receiver(answers=list(answers))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                state.bodies.append(body)
                state.headers.append(dict(self.headers))
                status = state.answers.pop(0) if state.answers else 204
            if status == SILENT:
                state.closing.wait()
            if status in (DROP, SILENT):
                self.close_connection = True
                return
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", state.url + "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a test reads what was received."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
