"""A proxy before PostgreSQL that loses the answer to a COMMIT: it happened, and the client never hears."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import make_url

_SOCKET = ".s.PGSQL.5432"


class LossyProxy:
    """Listens on a unix socket of its own in ``folder``; ``url`` leads through it."""

    def __init__(self, folder: Path, url: str) -> None:
        upstream = make_url(url)
        host = upstream.query["host"]
        assert isinstance(host, str)
        self._upstream = f"{host}/{_SOCKET}"
        self.url = upstream.set(query={**upstream.query, "host": str(folder)}).render_as_string(
            hide_password=False
        )
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen()
        self._to_lose = 0
        self._lock = threading.Lock()
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_commits(self, count: int) -> None:
        """Drop the connection of each of the next commits, after the server has done it."""
        with self._lock:
            self._to_lose += count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                for pump in (self._to_server, self._to_client):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if b"COMMIT" in data and self._takes_one():
                    # Nobody reads the server's answer from here on; it commits all the same.
                    client.shutdown(socket.SHUT_RDWR)
                    server.sendall(data)
                    break
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                with contextlib.suppress(OSError):
                    client.sendall(data)
        client.close()
        server.close()

    def _takes_one(self) -> bool:
        with self._lock:
            if self._to_lose == 0:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True
