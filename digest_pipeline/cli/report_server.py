"""The reports folder over HTTP, for links from the Dagster UI on one's own machine. Read-only.

Elsewhere, let any web server with a log-in serve the folder, and set DIGEST_REPORTS_URL to its address.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from digest_pipeline.cli.output import say

HOST = "127.0.0.1"
"""Never another address: whoever opens a report sees customer ids."""

_FILE = re.compile(r"/([A-Za-z0-9_][A-Za-z0-9_.-]*\.(?:html|csv))\Z").fullmatch
_TYPES = {".html": "text/html; charset=utf-8", ".csv": "text/csv; charset=utf-8"}
_HEADERS = {
    # What the pages themselves ask for, and no frame of another page.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_CHUNK = 1 << 16


class ReportServer(ThreadingHTTPServer):
    """Serves the .html and .csv files that lie directly in one folder, to this machine alone."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "digest"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is Dagster's."""

    def _answer(self, *, with_body: bool) -> None:
        # A page of another site may point a host name of its own at this machine.
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
            return
        found = _FILE(unquote(self.path.partition("?")[0]))
        file = _open(self.server.folder, found[1]) if found else None
        if file is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with file:
            self._send_file(file, found[1] if found else "", with_body=with_body)

    def _send_file(self, file: BinaryIO, name: str, *, with_body: bool) -> None:
        left = os.fstat(file.fileno()).st_size
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _TYPES[Path(name).suffix])
        self.send_header("Content-Length", str(left))
        if name.endswith(".csv"):
            self.send_header("Content-Disposition", f'attachment; filename="{name}"')
        self.end_headers()
        while with_body and left and (part := file.read(min(_CHUNK, left))):
            left -= len(part)
            self.wfile.write(part)

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()


def _open(folder: Path, name: str) -> BinaryIO | None:
    """Open a regular file of the folder itself: nothing that is linked from it, and no pipe."""
    try:
        file = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    return os.fdopen(file, "rb")


@contextmanager
def serve_reports(folder: Path, port: int) -> Iterator[None]:
    """Serve a folder's reports for the length of the block, and let child processes link to them.

    Does nothing where DIGEST_REPORTS_URL says that somebody else serves them. A taken port is said, and
    ends nothing: reports are then shown as paths.
    """
    if os.environ.get("DIGEST_REPORTS_URL"):
        yield
        return
    try:
        server = ReportServer(folder, port)
    except OSError:
        say.print(
            f"[yellow]port {port} is taken: reports are shown as paths; --reports-port names another[/]"
        )
        yield
        return
    thread = threading.Thread(target=server.serve_forever, name="reports", daemon=True)
    thread.start()
    os.environ["DIGEST_REPORTS_URL"] = server.url
    try:
        say.print(f"reports: {server.url}/DIGEST-PERIOD.html, for this machine only")
        yield
    finally:
        del os.environ["DIGEST_REPORTS_URL"]
        server.shutdown()
        thread.join()
        server.server_close()
