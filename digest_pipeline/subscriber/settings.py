"""The subscriber's side of the environment. Secrets are in no repr.

| variable                           | default            | what it is                                             |
|------------------------------------|--------------------|--------------------------------------------------------|
| DIGEST_SUBSCRIBER_SECRET           | none: no pushes    | signs the pushes that are taken, ``whsec_...``; a secret |
| DIGEST_SUBSCRIBER_PREVIOUS_SECRET  | none               | taken beside it while it is rotated; a secret          |
| DIGEST_SUBSCRIBER_LEDGER_URL       | DIGEST_LEDGER_URL  | where it remembers what became of each push            |
| DIGEST_SUBSCRIBER_SPECS            | DIGEST_SPECS       | folder of digests, with the gateways that really send  |
| DIGEST_SUBSCRIBER_CONTENT_URL      | none               | where content is fetched; without it, in DIGEST_LEDGER_URL |
| DIGEST_SUBSCRIBER_CONTENT_CA_FILE  | the system's       | authorities that its certificate is checked by         |
| DIGEST_CONTENT_TOKEN               | none               | opens the content path, on both sides; several while it is rotated, the newest first; a secret |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.gateways.signing import Signer
from digest_pipeline.settings import SHORTEST_KEY, Settings
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import load_folder

SECRET = "DIGEST_SUBSCRIBER_SECRET"
TOKEN = "DIGEST_CONTENT_TOKEN"


@dataclass(frozen=True)
class SubscriberSettings:
    """What the environment says to a subscriber, read once at a process's start.

    ``base``: the settings that every process has. ``signer``: None where no pushes are taken.
    """

    base: Settings
    ledger_url: str = field(repr=False)
    specs: Path
    content_url: str
    content_ca_file: str
    signer: Signer | None = field(repr=False)
    content_tokens: tuple[str, ...] = field(repr=False)

    @classmethod
    def from_environment(cls) -> SubscriberSettings:
        """Return the settings of this process. Raises InputError naming the variable that is wrong."""
        base = Settings.from_environment()
        return cls(
            base=base,
            ledger_url=os.environ.get("DIGEST_SUBSCRIBER_LEDGER_URL") or base.ledger_url,
            specs=Path(os.environ.get("DIGEST_SUBSCRIBER_SPECS") or base.specs),
            content_url=os.environ.get("DIGEST_SUBSCRIBER_CONTENT_URL") or "",
            content_ca_file=os.environ.get("DIGEST_SUBSCRIBER_CONTENT_CA_FILE") or "",
            signer=_signer(),
            content_tokens=content_tokens(),
        )

    @property
    def own(self) -> Settings:
        """The settings by which its own ledger is opened."""
        return replace(self.base, ledger_url=self.ledger_url, specs=self.specs)

    def digests(self) -> Mapping[str, Digest]:
        """Return the digests that are pushed here, by name. Raises SpecError for one that would push on."""
        found = load_folder(self.specs)
        for name, digest in found.items():
            if digest.gateway.kind == "https_push":
                raise SpecError(
                    f"{name}: a subscriber sends by itself, and this specification pushes to another; let "
                    "DIGEST_SUBSCRIBER_SPECS name a folder in which gateway.kind is the one that sends"
                )
        return found if self.base.sends else {name: one.not_sending() for name, one in found.items()}


def content_tokens() -> tuple[str, ...]:
    """Return the tokens of the content path, newest first. Raises InputError for one that is too short."""
    tokens = tuple(one for one in re.split(r"[\s,]+", os.environ.get(TOKEN) or "") if one)
    if any(len(token) < SHORTEST_KEY or not token.isascii() for token in tokens):
        raise InputError(f"{TOKEN} holds a token that is too short: at least {SHORTEST_KEY} ASCII characters")
    return tokens


def _signer() -> Signer | None:
    secret, previous = os.environ.get(SECRET), os.environ.get("DIGEST_SUBSCRIBER_PREVIOUS_SECRET")
    if not secret:
        if previous:
            raise InputError(f"DIGEST_SUBSCRIBER_PREVIOUS_SECRET goes with {SECRET}, which is not set")
        return None
    return Signer(SECRET, [one for one in (secret, previous) if one])
