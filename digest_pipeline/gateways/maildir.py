"""The gateway to a folder: each message becomes one .eml file, for development.

The file is named after the operation key and appears in one step, so a repeat finds it and writes nothing:
the folder replays keys for as long as its files are kept. It is laid out like a maildir (tmp, new).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.gateways.base import Capabilities, Envelope, Idempotency
from digest_pipeline.gateways.envelopes import keyed, unsendable
from digest_pipeline.gateways.json_api import account_of
from digest_pipeline.gateways.kinds import LIMIT_SETTINGS, Kind, Settings, required
from digest_pipeline.outcomes import (
    Absent,
    Accepted,
    AccountRefused,
    Ambiguous,
    FailureClass,
    Found,
    LookUp,
    LookUpFailed,
    Outcome,
    Refused,
)

_KEPT = timedelta(days=365)

CAPABILITIES = Capabilities(
    idempotency=Idempotency.REPLAYS,
    key_lifetime=_KEPT,
    look_up=True,
    visibility_delay=timedelta(0),
    look_up_retention=_KEPT,
)
"""True as long as nobody empties the folder."""


class MaildirGateway:
    """Writes to ``new`` below one folder."""

    name = "maildir"

    def __init__(self, folder: Path, capabilities: Capabilities = CAPABILITIES) -> None:
        self._folder, self.capabilities = folder, capabilities
        self.account = account_of("maildir", str(folder.absolute()))

    async def send(self, envelope: Envelope) -> Outcome:
        """Write one message, once. What cannot be written is a matter of the folder, not of the message."""
        if refused := unsendable(envelope, smtputf8=self.capabilities.smtputf8):
            return refused
        try:
            data = to_mime(keyed(envelope), envelope.recipient)
        except InputError as error:
            return Refused(FailureClass.CONTENT, str(error))
        try:
            return await asyncio.to_thread(self._write, self._place(envelope.operation_key), data)
        except OSError as error:
            return AccountRefused(f"folder: {type(error).__name__}")

    def _place(self, operation_key: str) -> Path:
        name = hashlib.sha256(operation_key.encode()).hexdigest()[:40]
        return self._folder / "new" / f"{name}.eml"

    def _write(self, place: Path, data: bytes) -> Outcome:
        unfinished = self._folder / "tmp" / f"{place.stem}.{secrets.token_hex(4)}"
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, place)  # unlike a rename, it never replaces what is there
        except FileExistsError:
            same = place.read_bytes() == data
            return (
                Accepted(place.stem, replayed=True)
                if same
                else Ambiguous("other bytes are there", integrity=True)
            )
        finally:
            unfinished.unlink()
        return Accepted(place.stem)

    async def look_up(self, operation_key: str) -> LookUp:
        """Look for the file."""
        place = self._place(operation_key)
        if not await asyncio.to_thread((self._folder / "new").is_dir):
            return LookUpFailed("the folder is not there")
        return Found(place.stem) if await asyncio.to_thread(place.exists) else Absent()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __repr__(self) -> str:
        return f"MaildirGateway(account={self.account!r})"


def _create(settings: Settings, capabilities: Capabilities) -> MaildirGateway:
    folder = Path(required("maildir", settings, "folder"))
    try:
        for part in ("tmp", "new"):
            (folder / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"folder: {folder} cannot be made ({type(error).__name__})") from None
    return MaildirGateway(folder, capabilities)


KIND = Kind(
    summary="a folder of .eml files, for development: nothing leaves this machine",
    capabilities=CAPABILITIES,
    settings={"folder": "where the files go, into new/", **LIMIT_SETTINGS},
    factory=_create,
)
