"""Reading a request's body, up to a limit: more is never held."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

SECONDS = 10.0
"""Within which a body must have come."""


class TooLargeError(Exception):
    """The body is larger than it may be."""


async def body_of(request: Request, limit: int) -> bytes:
    """Return the body. Raises TooLargeError as soon as it is known to be larger than ``limit`` bytes.

    Raises TimeoutError where it has not come within SECONDS.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise TooLargeError
    parts: list[bytes] = []
    size = 0
    async with asyncio.timeout(SECONDS):
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise TooLargeError
            parts.append(part)
    return b"".join(parts)
