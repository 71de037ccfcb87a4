"""The SMTP server's process: one port for plain connections and STARTTLS, one for TLS, and the admin side."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web

from digest_pipeline.lab.sandbox.admin import Admin
from digest_pipeline.lab.sandbox.answers import answer
from digest_pipeline.lab.sandbox.provider import Provider
from digest_pipeline.lab.sandbox.server import Handler, serve_with
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.lab.sandbox.store import Store
from digest_pipeline.lab.smtp.dialogue import Dialogue, Serving
from digest_pipeline.lab.smtp.script import Script, Scripted, harsh

LINE_LIMIT = 1024 * 1024


class SmtpServer:
    """Listens on two free ports of this machine; its authority's certificate is written to ``ca_file``."""

    def __init__(self, store_file: Path, *, smtputf8: bool, size: int, starttls: bool) -> None:
        self.ca_file = store_file.with_suffix(".ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.ca_file))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(self._context)
        self._plain, self._tls = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        self._smtputf8, self._size, self._starttls = smtputf8, size, starttls
        self._script = Script()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def addresses(self) -> dict[str, Any]:
        """Where to connect, for the line that says that the server is ready."""
        ports = {"smtp_port": self._plain.getsockname()[1], "smtps_port": self._tls.getsockname()[1]}
        return {**ports, "ca_file": str(self.ca_file)}

    def handler(self, settings: SandboxSettings, store: Store) -> Handler:
        """Start listening, and return what answers the admin side."""
        user, _, password = settings.api_key.partition(":")
        serving = Serving(
            store, self._script, self._context if self._starttls else None,
            user if password else "", password, self._smtputf8, self._size,
        )  # fmt: skip
        if settings.profile == "harsh":
            self._script.follow(harsh(settings.seed))
        for listener, context in ((self._plain, None), (self._tls, self._context)):
            self._spawn(
                asyncio.start_server(
                    _talk(serving, secure=context is not None), sock=listener, ssl=context, limit=LINE_LIMIT
                )
            )
        admin = Admin(Provider(SandboxSettings(api_key=settings.api_key), store))

        async def dispatch(request: web.BaseRequest) -> web.StreamResponse:
            if request.path == "/admin/smtp/script" and request.method == "POST":
                self._script.add([Scripted(**order) for order in await request.json()])
                return answer(200, {})
            if request.path == "/admin/reset":
                self._script.clear()
            return await admin.handle(request)

        return dispatch

    def _spawn(self, starting: Any) -> None:
        task = asyncio.ensure_future(starting)
        self._tasks.add(task)


def _talk(serving: Serving, *, secure: bool) -> Callable[..., Any]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Dialogue(serving, reader, writer, secure=secure).run()

    return talk


def serve_smtp(
    server: SmtpServer,
    store: Path,
    settings: SandboxSettings,
    ready: Callable[[str], None],
    until_stdin_closes: bool,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the parent goes away. Blocks."""
    serve_with(lambda: Store(store), server.handler, settings, ready, until_stdin_closes)
