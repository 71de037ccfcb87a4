"""One SMTP connection, driven step by step, so that it is always known how far a message has come.

aiosmtplib speaks the commands and reads the replies. Its ``send_message`` is not used: for a drop
before DATA and after the final dot it raises the same exception.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiosmtplib
from aiosmtplib import SMTP, SMTPResponse

from digest_pipeline.gateways.smtp_replies import Reply, Step
from digest_pipeline.gateways.smtp_settings import Server

GOODBYE_SECONDS = 2.0
"""For RSET and QUIT, whose answers change no verdict."""

_LINE_START_DOT = re.compile(rb"(?m)^\.")
_MECHANISMS = ("plain", "login", "cram-md5")


class Said(Exception):  # noqa: N818 - a reply is no error
    """A reply that does not let the dialogue go on."""

    def __init__(self, step: Step, reply: Reply) -> None:
        super().__init__(f"{step} {reply.code}")
        self.step, self.reply = step, reply


class Missing(Exception):  # noqa: N818
    """The server lacks what the configuration asks for; the text says what."""


class Dropped(Exception):  # noqa: N818
    """The connection ended, or never came to be. ``step``: what was under way."""

    def __init__(self, step: Step, kind: str) -> None:
        super().__init__(f"{step}: {kind}")
        self.step, self.kind = step, kind


class Session:
    """One connection to a server that is logged in. Never shared between two messages at once."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = SMTP(
            hostname=server.host,
            port=server.port,
            local_hostname=server.local_hostname,
            timeout=None,  # the whole send has one, around this
            use_tls=server.tls == "tls",
            start_tls=False,
            tls_context=server.context,
        )
        self.step = Step.CONNECT
        """The one that was taken last, or is under way."""
        self.used = time.monotonic()
        self.is_clean = True
        """Whether the server and we surely mean the same state: only then it may carry another message."""

    async def open(self) -> None:
        """Connect, secure and log in. Raises Said, Missing or Dropped."""
        await self._at(Step.CONNECT, self._connect)
        await self._at(Step.EHLO, self._client.ehlo)
        if self._server.tls == "starttls":
            if not self.offers("starttls"):
                raise Missing("the server offers no STARTTLS")
            await self._at(Step.STARTTLS, self._client.starttls)
            await self._at(Step.EHLO, self._client.ehlo)
        if self._server.username:
            await self._login()

    async def _connect(self) -> SMTPResponse:
        try:
            return await self._client.connect()
        except aiosmtplib.SMTPConnectResponseError as error:
            raise Said(Step.CONNECT, Reply(error.code, error.message)) from None

    async def _login(self) -> None:
        offered = self._client.supported_auth_methods if self.offers("auth") else ()
        shared = [name for name in _MECHANISMS if name in offered]
        if not shared:
            raise Missing("the server offers no way to log in that we know")
        methods = {
            "plain": self._client.auth_plain,
            "login": self._client.auth_login,
            "cram-md5": self._client.auth_crammd5,
        }
        username, password = self._server.username, self._server.password
        # One try: a wrong password that is tried in three ways locks accounts.
        await self._at(Step.AUTH, lambda: methods[shared[0]](username, password))

    def offers(self, extension: str) -> bool:
        """Whether the server said that it knows an extension."""
        return bool(self._client.supports_extension(extension))

    @property
    def size_limit(self) -> int | None:
        """The most octets of a message that the server takes, where it says so."""
        text = self._client.esmtp_extensions.get("size", "")
        return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None

    @property
    def is_open(self) -> bool:
        """Whether the connection is not known to be closed."""
        return bool(self._client.is_connected)

    async def deliver(self, sender: str, recipient: str, message: bytes, *, smtputf8: bool) -> Reply:
        """Give one message to exactly one recipient; return the positive reply to the final dot.

        ``message`` ends its lines with CRLF. Raises Said or Dropped, with the step that was under way:
        nothing of the message left before ``Step.DOT``.
        """
        options = [f"SIZE={len(message)}"] if self.offers("size") else []
        options += ["SMTPUTF8"] if smtputf8 else []
        mail = [b"MAIL", b"FROM:<" + sender.encode() + b">", *(option.encode() for option in options)]
        await self._command(Step.MAIL, 250, *mail)
        await self._command(Step.RCPT, 250, b"RCPT", b"TO:<" + recipient.encode() + b">")
        await self._command(Step.DATA, 354, b"DATA")
        reply = await self._at(Step.DOT, lambda: self._send(message))
        self.used = time.monotonic()
        return reply

    async def _command(self, step: Step, wanted: int, *words: bytes) -> Reply:
        async def execute() -> SMTPResponse:
            response = await self._client.execute_command(*words)
            if response.code != wanted and not (step is Step.RCPT and response.code == 251):
                raise Said(step, Reply(response.code, response.message))
            return response

        return await self._at(step, execute)

    async def _send(self, message: bytes) -> SMTPResponse:
        protocol = self._client.protocol
        if protocol is None or not protocol.is_connected:
            raise Dropped(Step.DATA, "SMTPServerDisconnected")  # not a byte of the message leaves
        # Dot-stuffing, RFC 5321 4.5.2.
        protocol.write(_LINE_START_DOT.sub(b"..", message) + b".\r\n")
        response = await protocol.read_response()
        if not 200 <= response.code < 300:
            raise Said(Step.DOT, Reply(response.code, response.message))
        return response

    async def _at(self, step: Step, act: Callable[[], Awaitable[SMTPResponse]]) -> Reply:
        """Take one step; whatever stops it says at which one."""
        self.step, clean, self.is_clean = step, self.is_clean, False
        try:
            response = await act()
        except Said as said:
            # A reply in the protocol's own terms leaves both sides of one mind; 421 announces the end.
            self.is_clean = clean and 400 <= said.reply.code < 600 and said.reply.code != 421
            raise
        except aiosmtplib.SMTPResponseException as error:
            if error.code == -1:  # aiosmtplib's mark for a line that is no reply
                raise Said(step, Reply(0, "a malformed reply")) from None
            raise Said(step, Reply(error.code, error.message)) from None
        except (aiosmtplib.SMTPException, OSError, UnicodeError, ValueError) as error:
            raise Dropped(step, type(error).__name__) from None
        surplus = self._said_more()
        if surplus and step is not Step.DOT:
            # The next command would be given this as its reply; behind the verdict it merely ends the connection.
            raise Said(step, Reply(0, "more replies than commands"))
        self.is_clean = clean and not surplus
        return Reply(response.code, response.message)

    def _said_more(self) -> bool:
        # aiosmtplib drops what comes unasked, but keeps what arrives together with an awaited reply.
        return bool(getattr(self._client.protocol, "_buffer", b""))

    async def reset(self) -> bool:
        """Forget a message that was refused; return whether the connection may carry another one."""
        if self.is_clean and self.is_open:
            with suppress(Said, Dropped, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._command(Step.EHLO, 250, b"RSET")
                    return True
        self.is_clean = False
        return False

    async def quit(self) -> None:
        """Say goodbye, whatever comes back, and close."""
        try:
            if self.is_open and self.is_clean:
                with suppress(aiosmtplib.SMTPException, OSError, TimeoutError, ValueError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        await self._client.execute_command(b"QUIT")
        finally:
            self.close()

    def close(self) -> None:
        """Drop the connection without a word."""
        transport = self._client.transport
        self._client.close()
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()  # a TLS transport would wait for the other side's goodbye
