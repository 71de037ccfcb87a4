"""Key files: a selection of deliveries written down with its count, and taken back only as it was written.

One operation key a line under a header that says what was selected:

    # customer_digest 2026-W42: 10 keys, dead letters, class recipient, sha256 8c1f...

A replay by class or tenant goes through such a file: what a person looked at is what is replayed, not
what the same selection would give by then. The checksum is over the keys, each with a line feed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from digest_pipeline.errors import InputError
from digest_pipeline.operations.decisions import unique
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

DEAD_LETTERS, UNKNOWNS = "dead letters", "unknowns"
_LISTED_BY = {DEAD_LETTERS: "digest dead-letters list", UNKNOWNS: "digest unknowns list"}
MOST_BYTES = 8_000_000
"""More than the longest order and its header; what is larger was not written here."""

_HEADER = re.compile(
    r"# (?P<digest>[a-z][a-z0-9_]*) (?P<period>[0-9A-Z-]+): (?P<count>[0-9]{1,9}) keys, (?P<kind>dead letters|unknowns)"
    r"(?:, class (?P<failure_class>[a-z_]+))?(?:, tenant (?P<tenant>[A-Za-z0-9._~%-]+))?, sha256 (?P<sha256>[0-9a-f]{64})"
).fullmatch


@dataclass(frozen=True, slots=True)
class Selection:
    """What was listed: ``dead letters`` or ``unknowns`` of a period, of one class or tenant if named."""

    digest: str
    period: str
    kind: str
    failure_class: str | None = None
    tenant: str | None = None

    def header(self, keys: Sequence[str]) -> str:
        """Return the first line of a file of these keys."""
        narrowed = f", class {self.failure_class}" if self.failure_class else ""
        narrowed += f", tenant {quote(self.tenant, safe='')}" if self.tenant else ""
        counted = f"{len(keys)} keys, {self.kind}{narrowed}"
        return f"# {self.digest} {self.period}: {counted}, sha256 {_checksum(keys)}"


def write(file: Path, selection: Selection, keys: Sequence[str]) -> None:
    """Write a key file, whole or not at all. Raises InputError for no keys, or where it cannot be."""
    if not keys:
        raise InputError(f"no {selection.kind} match, so {file} was not written")
    text = "".join(f"{line}\n" for line in (selection.header(keys), *keys))
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(f"the key file {file} cannot be written: {error.strerror}") from error


def read(file: Path, digest: str, period: str, kind: str) -> tuple[Selection, tuple[str, ...]]:
    """Return a key file's selection and keys, if it is of this digest, period and kind and as it was written.

    Raises InputError for any other, saying which command writes one.
    """
    write_one = f"{_LISTED_BY[kind]} --digest {digest} --period {period} --out FILE"
    header, keys = _lines(file)
    found = _HEADER(header)
    if found is None:
        raise InputError(
            f"the key file {file} has no header that says what it lists; write one with: {write_one}"
        )
    wanted = {"digest": digest, "period": period, "kind": kind}
    for part, expected in wanted.items():
        if found[part] != expected:
            raise InputError(
                f"the key file {file} lists {found['kind']} of {found['digest']} {found['period']}, "
                f"the order is about {kind} of {digest} {period}; write one with: {write_one}"
            )
    if len(keys) != int(found["count"]):
        raise InputError(
            f"the key file {file} says {found['count']} keys and has {len(keys)}: it was edited or cut off; "
            f"write it again with: {write_one}"
        )
    if _checksum(keys) != found["sha256"]:
        raise InputError(
            f"the key file {file} is not as it was written: its checksum is another; "
            f"write it again with: {write_one}"
        )
    tenant = None if found["tenant"] is None else unquote(found["tenant"])
    return Selection(digest, period, kind, found["failure_class"], tenant), keys


def chosen(
    given: Sequence[str], digest: Digest, period: Period, kind: str, tenant: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Return the keys that a person named, once each, and the tenant they are of.

    Each given one is an operation key, or ``@FILE`` for a key file, which may name the tenant. Raises
    InputError for a file that is not to be used, and for two tenants.
    """
    keys: list[str] = []
    for one in given:
        if not one.startswith("@"):
            keys.append(one)
            continue
        selection, listed = read(Path(one[1:]), digest.name, period.label, kind)
        if selection.tenant is not None and tenant not in (None, selection.tenant):
            raise InputError(f"the key file {one[1:]} is about another tenant than the order")
        tenant = selection.tenant or tenant
        keys += listed
    return unique(keys), tenant


def _lines(file: Path) -> tuple[str, tuple[str, ...]]:
    try:
        with file.open("rb") as opened:
            stored = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"the key file {file} cannot be read: {error.strerror}") from error
    if len(stored) > MOST_BYTES:
        raise InputError(f"the file {file} is too large to be a key file")
    if not stored.isascii():
        return "", ()  # keys and headers are ASCII: this is some other file
    header, *keys = [line.decode("ascii") for line in stored.splitlines()] or [""]
    return header, tuple(keys)


def _checksum(keys: Sequence[str]) -> str:
    return hashlib.sha256("".join(f"{key}\n" for key in keys).encode()).hexdigest()
