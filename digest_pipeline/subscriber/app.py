"""The subscriber as an ASGI app: pushes, provider events, unsubscribe links, content, each where it is configured.

Whatever goes wrong inside ends as a 500 with a constant body: nothing of a request or an error comes back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.delivery.run import prepare
from digest_pipeline.gateways.signing import Signer
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import Settings
from digest_pipeline.subscriber import content, log, push, unsubscribe
from digest_pipeline.subscriber.content import Contents
from digest_pipeline.subscriber.events import routes as events
from digest_pipeline.subscriber.openapi import describe
from digest_pipeline.subscriber.receiver import Receiver


@dataclass(frozen=True)
class Pushes:
    """What taking pushes needs. ``plans``: the digests that are sent from here, by name."""

    signer: Signer = field(repr=False)
    plans: Mapping[str, SendPlan]
    contents: Contents


def subscriber_app(ledger: Ledger, settings: Settings, pushes: Pushes | None) -> Starlette:
    """Return the app over a subscriber's ledger: pushes where they are given, events and links as configured."""
    parts: list[BaseRoute] = [*events.routes(ledger, settings), *unsubscribe.routes(ledger, settings)]
    if pushes is not None:
        receiver = Receiver(ledger, pushes.plans, pushes.contents, settings.environment)
        parts += push.routes(receiver, pushes.signer)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if pushes is not None:
                for plan in pushes.plans.values():
                    await run_in_threadpool(_prepare, ledger, plan)
                    await stack.enter_async_context(plan.gateway)
                stack.push_async_callback(pushes.contents.close)
            yield

    return _app(ledger, parts, lifespan)


def content_app(ledger: Ledger, tokens: Sequence[str]) -> Starlette:
    """Return the app that gives a subscriber its content, over the pipeline's ledger."""
    return _app(ledger, content.routes(ledger, tokens), None)


def _app(ledger: Ledger, parts: Sequence[BaseRoute], lifespan: object) -> Starlette:
    async def health(_request: Request) -> Response:
        try:
            await run_in_threadpool(_ping, ledger)
        except DBAPIError:
            return JSONResponse({"status": "no ledger"}, 503)
        return JSONResponse({"status": "ok"})

    paths = [route.path for route in parts if isinstance(route, Route)]
    described = describe(paths)

    async def openapi(_request: Request) -> Response:
        return JSONResponse(described)

    own = [Route("/healthz", health, methods=["GET"]), Route("/openapi.json", openapi, methods=["GET"])]
    app = Starlette(routes=[*parts, *own], lifespan=lifespan)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    app.add_middleware(Sanitised)
    return app


class Sanitised:
    """Turns every error into a constant answer; the log gets its class."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            return  # nobody is there to be answered, and nothing is wrong here
        except Exception as error:  # noqa: BLE001 - the last frame before the server, which would print it
            log.request_failed(type(error).__name__)
            if not started:
                await JSONResponse({"outcome": "error"}, 500)(scope, receive, send)


def _prepare(ledger: Ledger, plan: SendPlan) -> None:
    ledger.transact(lambda conn: prepare(conn, plan))


def _ping(ledger: Ledger) -> None:
    with ledger.read() as conn:
        conn.execute(text("SELECT 1"))
