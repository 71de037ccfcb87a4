"""The connections to one SMTP server that are ready for another message."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from digest_pipeline.gateways.smtp_session import Session
from digest_pipeline.gateways.smtp_settings import Server

_TURNS_TO_CLOSE = 5
"""Turns of the event loop until a TLS connection that either side ended has given its socket back."""


class Pool:
    """Keeps connections while both sides surely mean the same, and only for ``idle`` seconds."""

    def __init__(self, server: Server, idle: float) -> None:
        self.server, self._idle = server, idle
        self._free: deque[Session] = deque()

    def take(self, *, fresh: bool) -> tuple[Session, bool]:
        """Return a connection, and whether it has carried a message before; if not, it is not open yet."""
        while self._free and not fresh:
            session = self._free.pop()
            # A server that gave up waiting shows it only when it is spoken to: better not to let it come to that.
            if session.is_open and time.monotonic() - session.used < self._idle:
                return session, True
            session.close()
        return Session(self.server), False

    async def give(self, session: Session, *, finished: bool) -> None:
        """Keep a connection if it is surely fit for another message; close it otherwise.

        ``finished``: its message was accepted. One that was refused is forgotten by the server first.
        """
        fit = False
        try:
            fit = session.is_clean and session.is_open and (finished or await session.reset())
        finally:
            if not fit:
                session.close()
        if fit:
            session.used = time.monotonic()
            self._free.append(session)

    async def close(self) -> None:
        """Say goodbye on every connection."""
        sessions = list(self._free)
        self._free.clear()
        await asyncio.gather(*(session.quit() for session in sessions))
        for _ in range(_TURNS_TO_CLOSE):
            await asyncio.sleep(0)
