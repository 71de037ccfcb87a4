"""A socket server that answers with given bytes: what no real server would say on purpose."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from digest_pipeline.gateways.http import HttpLimits
from digest_pipeline.gateways.sandbox import SandboxGateway
from digest_pipeline_tests.harness.sandbox import envelope

RESET = b"<reset>"
"""In place of an answer: reset the connection once the request has come."""


@dataclass
class RawServer:
    """Bound to a free port; ``requests`` are the raw requests, in order of arrival."""

    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


def answer(status: int, body: bytes = b"{}", headers: str = "", reason: str = "Said") -> bytes:
    """Return one well-framed answer; ``headers`` are lines that end with CRLF."""
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    return head.encode() + headers.encode("utf-8") + b"\r\n" + body


@asynccontextmanager
async def raw_server(answers: Sequence[bytes]) -> AsyncIterator[RawServer]:
    """Serve the answers in turn, the last one for ever."""
    state = RawServer()
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read_request(reader):
                state.requests.append(request)
                state.arrived.set()
                said = left.pop(0) if len(left) > 1 else left[0]
                if said == RESET:
                    _reset(writer)
                    return
                writer.write(said)
                await writer.drain()
                if b"Connection: close" in said:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head + await reader.readexactly(length)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


SECRET = "S3cr3t@key/with+odd=chars"
PAGE = b"<html>nothing for you</html>"


def named(name: str) -> bytes:
    """Return an error body of the sandbox's API."""
    return b'{"name": "%b", "message": "m"}' % name.encode()


def outcome_of(
    *answers: bytes, count: int = 1, limits: HttpLimits | None = None, now: datetime | None = None
) -> tuple[list[Any], RawServer]:
    """Return the outcomes of that many sends, and what the server saw."""

    async def run() -> tuple[list[Any], RawServer]:
        async with raw_server(answers) as server:
            clock: dict[str, Any] = {"now": lambda: now} if now else {}
            async with SandboxGateway(server.url, SECRET, limits=limits or HttpLimits(), **clock) as gateway:
                return [await gateway.send(envelope()) for _ in range(count)], server

    return asyncio.run(run())
