"""The answers of the API, and what the faults make of them."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import time
from email.utils import formatdate
from typing import Any

from aiohttp import web

from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.messages import Problem

_PAGE = "<!doctype html><title>{0}</title><h1>{0}</h1>"
_JSON = "application/json"


def answer(status: int, body: Any, headers: dict[str, str] | None = None) -> web.Response:
    """Return a JSON answer."""
    return web.Response(status=status, body=json.dumps(body).encode(), content_type=_JSON, headers=headers)


def problem_body(problem: Problem) -> dict[str, Any]:
    """Return the body of every refusal of this API."""
    return {"statusCode": problem.status, "name": problem.name, "message": problem.message}


def refuse(problem: Problem, retry_after: float | None = None) -> web.Response:
    """Return a refusal. ``retry_after`` is rounded up to whole seconds."""
    headers = None if retry_after is None else {"Retry-After": str(math.ceil(retry_after))}
    return answer(problem.status or 500, problem_body(problem), headers)


async def distort(
    rule: Rule, request: web.BaseRequest, true: web.Response, released: asyncio.Event
) -> web.StreamResponse:
    """Return what the client gets in place of the true answer."""
    match rule.fault:
        case Fault.SLOW:
            await asyncio.sleep(rule.delay)
        case Fault.HELD_AFTER_ACCEPT:
            await released.wait()
        case Fault.TIMEOUT_AFTER_ACCEPT:
            await asyncio.Event().wait()  # ends when the client leaves: the server cancels this handler
        case Fault.RESET_BEFORE_ACCEPT | Fault.RESET_AFTER_ACCEPT:
            _reset(request)
        case Fault.CUT_BODY_AFTER_ACCEPT:
            return await _cut(request, true)
        case Fault.THROTTLED_429:
            true.headers["Retry-After"] = str(math.ceil(rule.retry_after))
        case Fault.THROTTLED_429_DATE:
            # The header has whole seconds; rounding up keeps "not before" true.
            true.headers["Retry-After"] = formatdate(math.ceil(time.time() + rule.retry_after), usegmt=True)
        case _:
            return _replaced(rule.fault, true)
    return true


def _replaced(fault: Fault, true: web.Response) -> web.Response:
    match fault:
        case Fault.BAD_GATEWAY_502_AFTER_ACCEPT:
            return _page(502, "Bad Gateway")
        case Fault.HTML_200_AFTER_ACCEPT:
            return _page(200, "Welcome")
        case Fault.SERVER_ERROR_500_AFTER_ACCEPT:
            return refuse(Problem(500, "internal_server_error", "something went wrong"))
        case Fault.TRUNCATED_JSON_AFTER_ACCEPT:
            return web.Response(status=200, body=_half(true), content_type=_JSON)
        case _:
            return true


def _page(status: int, title: str) -> web.Response:
    return web.Response(status=status, text=_PAGE.format(title), content_type="text/html")


def _half(true: web.Response) -> bytes:
    body = true.body
    assert isinstance(body, bytes)
    return body[: len(body) // 2]


def _reset(request: web.BaseRequest) -> None:
    """Drop the connection with an RST: lingering for 0 seconds makes the kernel send one."""
    transport = request.transport
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _cut(request: web.BaseRequest, true: web.Response) -> web.StreamResponse:
    body = _half(true)
    response = web.StreamResponse(headers={"Content-Length": str(2 * len(body) + 2), "Content-Type": _JSON})
    await response.prepare(request)
    await response.write(body)
    if request.transport is not None:
        request.transport.close()
    return response
