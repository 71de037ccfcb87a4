"""The sandbox provider's HTTP server.

=======================================  ===========================================================
``POST /v1/messages``                    one message, JSON: from, to [{email, name}], subject, text,
                                         html, headers, metadata {operation_key}. Headers:
                                         ``Idempotency-Key`` asks for de-duplication;
                                         ``X-Operation-Key`` only names the key. 200 {"id"}
``POST /v1/messages/batch``              up to 500 such objects, one per line; the operation key of
                                         each is its idempotency key. 200 {"data": [{key, status,
                                         id, replayed} or {key, status, error}]}
``GET /v1/messages?key=``                look-up by operation key: {"data": []} or one entry
``GET /healthz``                         200 while it serves; needs no API key
``/admin/...``                           see ``admin``
=======================================  ===========================================================

Refusals are {"statusCode", "name", "message"}. Everything but /healthz needs ``Authorization:
Bearer``. An answer leaves only after what it says is committed to the store.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from digest_pipeline.lab.sandbox.admin import Admin
from digest_pipeline.lab.sandbox.answers import answer, refuse
from digest_pipeline.lab.sandbox.messages import Problem
from digest_pipeline.lab.sandbox.provider import Provider
from digest_pipeline.lab.sandbox.routes import Routes
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.lab.sandbox.store import Store

KEEP_ALIVE_SECONDS = 75.0
MAX_BODY = 64 * 1024 * 1024

_NOT_FOUND = Problem(404, "not_found", "no such route")


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
StoreT = TypeVar("StoreT", bound=Store)


def serve(
    settings: SandboxSettings, store: Path, ready: Callable[[str], None], until_stdin_closes: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the bound URL. Blocks.

    With ``until_stdin_closes`` it also ends when its parent goes away.
    """
    serve_with(lambda: Store(store), _sandbox, settings, ready, until_stdin_closes)


def serve_with(
    open_store: Callable[[], StoreT],
    handler: Callable[[SandboxSettings, StoreT], Handler],
    settings: SandboxSettings,
    ready: Callable[[str], None],
    until_stdin_closes: bool,
) -> None:
    """As ``serve``, with another store and other answers. Both are made on the event loop."""
    asyncio.run(_run(open_store, handler, settings, ready, until_stdin_closes))


async def _run(
    open_store: Callable[[], StoreT],
    handler: Callable[[SandboxSettings, StoreT], Handler],
    settings: SandboxSettings,
    ready: Callable[[str], None],
    until_stdin_closes: bool,
) -> None:
    store = open_store()
    ended = _end_signal(until_stdin_closes)
    runner = web.ServerRunner(_server(handler(settings, store)), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port, backlog=1024)
        await site.start()
        # What start-up made lives as long as the process; collections should not walk it again.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        ready(f"http://{settings.host}:{runner.addresses[0][1]}")
        await ended.wait()
    finally:
        await runner.cleanup()
        store.close()


def _server(handler: Handler) -> web.Server:
    # The low-level server: routing tables, middlewares and the access log cost a third of the rate.
    loop = asyncio.get_running_loop()

    def request_factory(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)

    return web.Server(
        handler,
        request_factory=request_factory,
        # Only so does a handler that stays silent on purpose end when its client leaves.
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
    )


def _sandbox(settings: SandboxSettings, store: Store) -> Handler:
    provider = Provider(settings, store)
    routes, admin = Routes(provider), Admin(provider)
    public = {
        ("POST", "/v1/messages"): routes.send,
        ("POST", "/v1/messages/batch"): routes.send_batch,
        ("GET", "/v1/messages"): routes.look_up,
    }

    async def dispatch(request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        found = public.get((request.method, path))
        if found is not None:
            return await found(request)
        if path.startswith("/admin/"):
            return await admin.handle(request)
        return answer(200, {"status": "ok"}) if path == "/healthz" else refuse(_NOT_FOUND)

    return dispatch


def _end_signal(until_stdin_closes: bool) -> asyncio.Event:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, loop, ended)
    return ended


def _read_stdin(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):  # end of file: the parent is gone
        loop.remove_reader(sys.stdin.fileno())
        ended.set()
