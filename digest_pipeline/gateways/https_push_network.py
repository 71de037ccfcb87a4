"""Where a push may connect to: checked on the very address that is about to be connected to.

A name can resolve to anything, and to something else a moment later; so the check is made where the socket
is, behind every resolution. It covers addresses that are written into the URL, too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from yarl import URL

from digest_pipeline.errors import SpecError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NUMBERS = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\.?", re.I).fullmatch
_PLAIN_IPV4 = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}").fullmatch
_ODD = re.compile(r"[\s\\\x00-\x1f\x7f]").search


class ForbiddenAddressError(OSError):
    """The address is not one of the public internet, and nobody allowed it. Names neither."""

    def __init__(self) -> None:
        super().__init__("a private address")


class Guard:
    """Decides about each address. ``refusals`` counts those that were refused.

    ``allowed``: networks, and the host of the URL where it may be a private one. A host never opens
    link-local addresses, where clouds keep their metadata services; only a network does that.
    """

    def __init__(self, host: str, allowed: Sequence[str], *, loopback_only: bool = False) -> None:
        self._networks, names = _read(allowed)
        self._host_may_be_private = host.rstrip(".").lower() in names
        self._loopback_only = loopback_only
        self.refusals = 0

    def socket(self, info: Any) -> socket.socket:
        """Return an unconnected socket for an address. Raises ForbiddenAddressError."""
        family, kind, protocol, _, where = info
        if not self.allows(str(where[0])):
            self.refusals += 1
            raise ForbiddenAddressError
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    def allows(self, text: str) -> bool:
        """Whether a connection to this address may be made."""
        try:
            found = ipaddress.ip_address(text)
        except ValueError:
            return False
        return all(self._may(address) for address in _meant(found))

    def _may(self, address: Address) -> bool:
        if self._loopback_only and not address.is_loopback:
            return False
        if any(address in network for network in self._networks if network.version == address.version):
            return True
        never = address.is_multicast or address.is_unspecified or address.is_link_local
        if self._host_may_be_private and not never:
            return True
        inner = address.is_private or address.is_reserved or getattr(address, "is_site_local", False)
        return address.is_global and not never and not inner


def _meant(found: Address) -> Iterator[Address]:
    """Yield an address, or what it stands for: IPv4 comes in many clothes."""
    if isinstance(found, ipaddress.IPv4Address):
        yield found
        return
    low = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
    if found.ipv4_mapped is not None:
        yield found.ipv4_mapped
    elif found.sixtofour is not None:
        yield found.sixtofour
    elif found.teredo is not None:
        yield from found.teredo
    elif found in _NAT64 or (found in _COMPATIBLE and int(found) > 1):
        yield low
    else:
        yield found


def _read(allowed: Sequence[str]) -> tuple[list[Network], frozenset[str]]:
    networks: list[Network] = []
    names: set[str] = set()
    for one in allowed:
        try:
            networks.append(ipaddress.ip_network(one, strict=False))
        except ValueError:
            if "/" in one:
                raise SpecError(f"allow_private: {one!r} is neither a network nor a host name") from None
            names.add(one.rstrip(".").lower())
    return networks, frozenset(names)


def checked_url(text: str) -> URL:
    """Return a base URL that a push may go to. Raises SpecError, without quoting it: it may hold a password."""
    wrong = SpecError(
        "the https_push gateway's url must be https://host[:port][/path], without user, query or fragment"
    )
    try:
        # Other readers of URLs take a backslash for a slash, or drop a line end.
        url = URL(text) if not _ODD(text) else URL()
        _ = url.port, (url.raw_host or "").encode("idna")
    except (ValueError, UnicodeError):
        raise wrong from None
    if url.scheme not in ("https", "http") or not url.host or "@" in text:
        raise wrong
    if _NUMBERS(url.host) and not _PLAIN_IPV4(url.host):  # 127.1, 2130706433: addresses to some readers
        raise wrong
    if url.raw_query_string or url.raw_fragment or "?" in text or "#" in text:
        raise wrong
    return url


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Return what verifies the other side: by a file of authorities, or by the system's. Raises SpecError."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError):
        raise SpecError(f"ca_file: {Path(ca_file).name} is no readable file of certificates (PEM)") from None
