"""Serving an app with uvicorn: on a socket bound first, with TLS where a certificate is given, without access log."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from digest_pipeline.errors import InputError

GRACE_SECONDS = 60
"""For requests under way when the server is told to end: longer than a send."""

KEEP_ALIVE_SECONDS = 75
"""Longer than the pipeline keeps an idle connection: a push must not meet one that is just being closed."""


MOST_CONNECTIONS = 1000
"""Open at once; further ones are told 503."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a server listens. ``port`` 0 takes a free one; without a certificate it speaks plain HTTP."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


def serve(
    app: ASGIApp, where: Listening, ready: Callable[[str], None], *, until_stdin_closes: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the URL once connections are taken. Blocks.

    Raises InputError for an address that can't be bound or a certificate that can't be read.
    """
    if (where.certificate is None) != (where.key is None):
        raise InputError("--cert and --key go together: the certificate chain and its private key")
    with _bound(where) as listener:
        scheme = "https" if where.certificate else "http"
        host = f"[{where.host}]" if ":" in where.host else where.host
        url = f"{scheme}://{host}:{listener.getsockname()[1]}"
        server = _Server(_config(app, where), lambda: ready(url))
        if until_stdin_closes:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._told()


def _config(app: ASGIApp, where: Listening) -> uvicorn.Config:
    # Its own loggers stay as this process has set logging up: an access log would list customers.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        ssl_certfile=where.certificate,
        ssl_keyfile=where.key,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        # httptools, which uvicorn would prefer, collects headers without any limit.
        http="h11",
        h11_max_incomplete_event_size=32 * 1024,
        limit_concurrency=MOST_CONNECTIONS,
        # What a header says of where a request comes from counts for nothing.
        proxy_headers=False,
        ws="none",
    )
    try:
        config.load()
    except OSError as error:
        raise InputError(
            f"--cert or --key cannot be used: {type(error).__name__}; a PEM chain and its unencrypted key are needed"
        ) from None
    return config


def _bound(where: Listening) -> socket.socket:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    try:
        return socket.create_server((where.host, where.port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(f"--host, --port: this address cannot be listened at ({error.strerror})") from None


def _end_with_stdin(server: uvicorn.Server) -> None:
    while os.read(0, 1024):
        pass
    server.should_exit = True
