"""One SMTP connection from the server's side (RFC 5321), which follows the script."""

from __future__ import annotations

import asyncio
import base64
import email.policy
import hashlib
import ssl
from email import message_from_bytes
from typing import NamedTuple

from digest_pipeline.lab.sandbox.provider import now_us
from digest_pipeline.lab.sandbox.records import Arrival, Verdict
from digest_pipeline.lab.sandbox.store import Store
from digest_pipeline.lab.smtp.script import DROP, LATE, LATE_SECONDS, SILENCE, Script, Scripted

MAX_LINE = 1000
"""Octets with the line end: RFC 5321 4.5.3.1.6. A strict server refuses what is longer."""


class Serving(NamedTuple):
    """What all connections of a server share. ``context`` None: no STARTTLS is offered."""

    store: Store
    script: Script
    context: ssl.SSLContext | None
    user: str
    password: str
    smtputf8: bool
    size: int


class _Over(Exception):  # noqa: N818
    """This connection ends here."""


class Dialogue:
    """Reads commands and answers them until one side has had enough."""

    def __init__(
        self, serving: Serving, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, secure: bool
    ) -> None:
        self._serving, self._reader, self._writer = serving, reader, writer
        self._secure, self._known = secure, not serving.user
        self._request = serving.store.next_request()
        self._sender: str | None = None
        self._recipients: list[str] = []

    async def run(self) -> None:
        """Serve the connection."""
        try:
            await self._say("connect", "220 relay.example ESMTP")
            while True:
                line = await self._line()
                verb, _, rest = line.partition(" ")
                await self._obey(verb.upper(), rest)
        except (_Over, ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError):
            pass
        finally:
            self._writer.transport.abort() if self._writer.transport.is_closing() else self._writer.close()

    async def _obey(self, verb: str, rest: str) -> None:
        match verb:
            case "EHLO":
                await self._say("ehlo", self._greeting())
            case "STARTTLS" if self._serving.context is not None:
                await self._starttls()
            case "AUTH":
                await self._auth(rest)
            case "MAIL" if not self._known:
                await self._write("530 5.7.0 log in first")
            case "MAIL":
                self._serving.script.begun()
                self._recipients = []
                self._sender = rest if await self._say("mail", "250 2.1.0 ok") else None
            case "RCPT" if self._sender is not None:
                await self._rcpt(rest)
            case "DATA" if self._recipients:
                await self._data()
            case "RSET":
                self._sender, self._recipients = None, []
                await self._say("rset", "250 2.0.0 ok")
            case "QUIT":
                await self._say("quit", "221 2.0.0 bye")
                raise _Over
            case _:
                await self._write("503 5.5.1 not now")

    def _greeting(self) -> str:
        offers = ["relay.example", f"SIZE {self._serving.size}", "8BITMIME", "ENHANCEDSTATUSCODES"]
        offers += ["SMTPUTF8"] * self._serving.smtputf8
        if self._serving.context is not None and not self._secure:
            offers.append("STARTTLS")
        elif self._serving.user:
            offers.append("AUTH PLAIN LOGIN")
        return "\r\n".join([*(f"250-{offer}" for offer in offers[:-1]), f"250 {offers[-1]}"])

    async def _starttls(self) -> None:
        assert self._serving.context is not None
        if not await self._say("starttls", "220 2.0.0 go ahead"):
            return
        await self._writer.start_tls(self._serving.context)
        self._secure, self._sender = True, None

    async def _auth(self, rest: str) -> None:
        mechanism, _, given = rest.partition(" ")
        if mechanism.upper() == "PLAIN" and given:
            _, user, password = base64.b64decode(given).decode().split("\0")
        else:
            user = await self._asked("VXNlcm5hbWU6")
            password = await self._asked("UGFzc3dvcmQ6")
        if (user, password) == (self._serving.user, self._serving.password):
            self._known = await self._say("auth", "235 2.7.0 welcome")
        else:
            # The credential in the reply is on purpose: a client must not show it.
            await self._write(f"535 5.7.8 no such login: {user} {password}")

    async def _asked(self, prompt: str) -> str:
        await self._write(f"334 {prompt}")
        return base64.b64decode(await self._line()).decode()

    async def _rcpt(self, rest: str) -> None:
        address = rest.partition("<")[2].rpartition(">")[0]
        if address.endswith("@bounce.example"):
            await self._write(f"550 5.1.1 <{address}>: no such user")
        elif await self._say("rcpt", "250 2.1.5 ok", address):
            self._recipients.append(address)

    async def _data(self) -> None:
        if not await self._say("data", "354 end with a dot"):
            return
        lines = []
        while (line := await self._reader.readuntil(b"\n")) != b".\r\n":
            lines.append(line[1:] if line.startswith(b".") else line)
        message = b"".join(lines)
        strict = all(
            one.endswith(b"\r\n") and len(one) <= MAX_LINE and b"\r" not in one[:-2] for one in lines
        )
        if not strict:
            await self._write("550 5.6.11 a bare CR or LF, or a line that is too long")
            return
        await self._judge(message)

    async def _judge(self, message: bytes) -> None:
        order = self._serving.script.at("dot", self._recipients[0])
        accepted = order is None or order.accepts
        number = await self._record(message, order, accepted=accepted)
        self._sender, self._recipients = None, []
        await self._act(order, f"250 2.0.0 Ok: queued as {number}")

    async def _record(self, message: bytes, order: Scripted | None, *, accepted: bool) -> str | None:
        parsed = message_from_bytes(message, policy=email.policy.SMTPUTF8)
        key = str(parsed["X-Operation-Key"] or "")
        store = self._serving.store
        earlier = store.earlier(key)
        number = store.next_message_id() if accepted else None
        await asyncio.shield(
            store.add(
                Arrival(
                    self._request, now_us(), "send", key, len(earlier) + 1,
                    Verdict.ACCEPTED if accepted else Verdict.FAULT, 250 if accepted else 0, int(accepted),
                    order.name if order else None, 0 if order else None, hashlib.sha256(message).digest(),
                    self._addressed(str(parsed["To"] or "")),
                    hashlib.sha256(self._recipients[0].encode()).digest(), number,
                )
            )
        )  # fmt: skip
        return number

    def _addressed(self, to: str) -> int:
        """How many people get it: those of the envelope, and further ones that the header names."""
        return max(len(self._recipients), to.count("@"))

    async def _say(self, step: str, answer: str, recipient: str = "") -> bool:
        """Answer a command as usual, unless the script has another idea; return whether it was as usual."""
        order = self._serving.script.at(step, recipient)
        if order is not None:
            self._note(order)
        return await self._act(order, answer)

    async def _act(self, order: Scripted | None, answer: str) -> bool:
        if order is not None and order.action == DROP:
            raise _Over
        if order is not None and order.action == SILENCE:
            await self._reader.read()
            raise _Over
        if order is not None and order.action == LATE:
            await asyncio.sleep(LATE_SECONDS)
        as_usual = order is None or order.action == LATE
        await self._write(answer if order is None or as_usual else order.action)
        if order is not None and order.action.startswith("421"):
            raise _Over
        return as_usual

    def _note(self, order: Scripted) -> None:
        """Remember that an order was met, of a message whose key nobody knows yet."""
        arrival = Arrival(
            self._request, now_us(), order.step, "", None, Verdict.FAULT, 0, fault=order.name, rule=0
        )
        self._serving.store.add(arrival)

    async def _line(self) -> str:
        return (await self._reader.readuntil(b"\n")).decode("utf-8", "replace").rstrip("\r\n")

    async def _write(self, answer: str) -> None:
        self._writer.write(f"{answer}\r\n".encode())
        await self._writer.drain()
