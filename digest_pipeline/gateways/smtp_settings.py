"""What the smtp gateway reads: where the relay is, how to log in, and how messages are handed over."""

from __future__ import annotations

import base64
import ipaddress
import socket
import ssl
from dataclasses import dataclass, field
from datetime import timedelta

from digest_pipeline.addresses import Rejection, check_address
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways.kinds import (
    LIMIT_SETTINGS,
    Settings,
    duration,
    http_limits,
    number,
    required,
    truth,
)

SETTINGS = {
    "host": "of the relay; its certificate must name it",
    "port": "587, 465 with security tls, or 25 with none",
    "security": "starttls (the default), tls, or none for a relay on this machine",
    "allow_plain": "true: security none also to another machine, and without a login",
    "ca_file": "certificates to trust instead of the system's",
    "username": "to log in with; none without one",
    "password": "to log in with",
    "envelope_from": "address for bounces; that of the From header unless given",
    "local_hostname": "name to say hello with; this machine's unless given",
    "idle": "a kept connection is closed after so long, e.g. 10s; below the server's own time",
    "put_off": "least wait for a recipient that is refused for now, e.g. 5m",
    **LIMIT_SETTINGS,
}
"""Each setting with a word on it."""

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
"""Where a relay listens, by ``security``."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where and how to connect. ``tls``: ``starttls``, ``tls`` from the first byte, or ``none``."""

    host: str
    port: int
    tls: str
    local_hostname: str
    context: ssl.SSLContext | None = field(repr=False, default=None)
    username: str = field(repr=False, default="")
    password: str = field(repr=False, default="")

    @property
    def hidden(self) -> tuple[str, ...]:
        """The credential in every form that crosses the wire."""
        if not self.username:
            return ()
        plain = f"\0{self.username}\0{self.password}".encode()
        return self.username, self.password, base64.b64encode(plain).decode()


@dataclass(frozen=True, slots=True)
class Manner:
    """How messages are handed over. ``put_off``: least wait after a recipient was refused for now."""

    time_out: timedelta = timedelta(seconds=30)
    connections: int = 10
    idle: timedelta = timedelta(seconds=10)
    put_off: timedelta = timedelta(minutes=5)
    envelope_from: str = ""


def manner_of(settings: Settings) -> Manner:
    """Return how messages are handed over. Raises SpecError naming a setting that makes no sense."""
    limits = http_limits(settings)
    return Manner(
        time_out=limits.total,
        connections=limits.connections,
        idle=duration("idle", settings.get("idle", "10s")),
        put_off=duration("put_off", settings.get("put_off", "5m")),
        envelope_from=_address(settings.get("envelope_from", "")),
    )


def server_of(settings: Settings) -> Server:
    """Return where and how to connect. Raises SpecError naming a setting that makes no sense."""
    host = required("smtp", settings, "host")
    security = settings.get("security", "starttls")
    if security not in _PORTS:
        raise SpecError(f"security is one of {', '.join(_PORTS)}, not {security!r}")
    username, password = settings.get("username", ""), settings.get("password", "")
    if bool(username) != bool(password):
        raise SpecError("the smtp gateway needs username and password, or neither")
    if security == "none":
        _require_trust(host, settings, username)
    return Server(
        host=host,
        port=number("port", settings.get("port", str(_PORTS[security]))),
        tls=security,
        local_hostname=settings.get("local_hostname") or socket.getfqdn(),
        context=None if security == "none" else _context(settings.get("ca_file", "")),
        username=username,
        password=password,
    )


def _require_trust(host: str, settings: Settings, username: str) -> None:
    """Let messages travel in the clear on this machine, or where somebody said so; a password never does."""
    if _is_this_machine(host):
        return
    if not truth("allow_plain", settings.get("allow_plain", "false")):
        raise SpecError(
            'security: none is for a relay on this machine; use starttls or tls, or say allow_plain: "true" '
            "for a network that you trust"
        )
    if username:
        raise SpecError("security: none would send the password in the clear; use starttls or tls")


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SpecError(
            f"ca_file: {ca_file} cannot be read as certificates ({type(error).__name__})"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(text: str) -> str:
    address = check_address(text) if text else None
    if isinstance(address, Rejection):
        raise SpecError("envelope_from must be one plain address, without a name")
    return address.value if address else ""
