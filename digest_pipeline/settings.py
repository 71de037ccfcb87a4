"""Where this installation keeps things: the environment's side of the configuration.

| variable               | default                      | what it is                                   |
|------------------------|------------------------------|----------------------------------------------|
| DIGEST_HOME            | .digest                      | folder for the embedded databases and reports |
| DIGEST_LEDGER_URL      | sqlite in DIGEST_HOME        | SQLAlchemy URL of the ledger                 |
| DIGEST_SPECS           | the packaged demo's folder   | folder of digest specifications              |
| DIGEST_ENVIRONMENT     | local                        | name a ledger is bound to; a copy under another name never sends |
| DIGEST_SENDING         | on                           | off: nothing is sent, whatever a digest says |
| DIGEST_REPORTS         | reports/ in DIGEST_HOME      | where reports are written                    |
| DIGEST_UI_URL          | none                         | the Dagster UI, for links in notifications   |
| DIGEST_REPORTS_URL     | none: reports are shown as paths | http(s) URL under which that folder is served |
| DIGEST_EXECUTOR        | in_process                   | celery: steps run on dagster-celery's workers |
| DIGEST_UNSUBSCRIBE_KEYS | none                        | keys that sign unsubscribe links, newest first; a secret |

What authenticates the events that a provider reports at ``/events/<provider>``; a provider without it
is not listened to. Each may hold several values (the newest first, for a rotation), separated by commas
or spaces.

| variable                        | what it is                                                  |
|---------------------------------|-------------------------------------------------------------|
| DIGEST_EVENTS_RESEND_SECRET     | the webhook's signing secret, ``whsec_...``                  |
| DIGEST_EVENTS_POSTMARK_SECRET   | ``user:password`` of the webhook's URL                       |
| DIGEST_EVENTS_POSTMARK_NETWORKS | addresses or networks that may call; any without it          |
| DIGEST_EVENTS_POSTMARK_SERVERS  | ids of the Postmark servers that are ours; any without it    |
| DIGEST_EVENTS_MAILJET_SECRET    | ``user:password`` of the webhook's URL                       |
| DIGEST_EVENTS_SENDGRID_KEY      | the public key that verifies signed events                   |
| DIGEST_EVENTS_MAILGUN_SECRET    | the HTTP webhook signing key                                 |
| DIGEST_EVENTS_BREVO_SECRET      | the webhook's bearer token                                   |
| DIGEST_EVENTS_SES_TOPICS        | ARNs of the SNS topics that are ours                         |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from digest_pipeline.errors import InputError
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import load_folder

PACKAGED_SPECS = Path(__file__).parent / "specs"
DEMO_SPECS = Path(__file__).parent / "demo" / "specs"

Executor = Literal["in_process", "celery"]

EVENT_SETTINGS = (
    "RESEND_SECRET",
    "POSTMARK_SECRET",
    "POSTMARK_NETWORKS",
    "POSTMARK_SERVERS",
    "MAILJET_SECRET",
    "SENDGRID_KEY",
    "MAILGUN_SECRET",
    "BREVO_SECRET",
    "SES_TOPICS",
)
"""What a provider's events are authenticated by: variables, behind ``DIGEST_EVENTS_``."""

SHORTEST_KEY = 16
"""Characters of a key that signs."""


@dataclass(frozen=True)
class Settings:
    """What the environment says, read once at a process's start."""

    home: Path
    ledger_url: str
    specs: Path
    environment: str
    reports: Path
    sends: bool = True
    ui_url: str = ""
    reports_url: str = ""
    executor: Executor = "in_process"
    # Secrets: never in a repr.
    unsubscribe_keys: tuple[str, ...] = field(default=(), repr=False)
    events: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_environment(cls) -> Settings:
        """Return the settings of this process."""
        home = Path(os.environ.get("DIGEST_HOME") or ".digest").absolute()
        return cls(
            home=home,
            ledger_url=os.environ.get("DIGEST_LEDGER_URL") or f"sqlite:///{home / 'ledger.db'}",
            specs=Path(os.environ.get("DIGEST_SPECS") or DEMO_SPECS),
            environment=os.environ.get("DIGEST_ENVIRONMENT") or "local",
            reports=Path(os.environ.get("DIGEST_REPORTS") or home / "reports").absolute(),
            sends=_is_on("DIGEST_SENDING"),
            ui_url=_web_address("DIGEST_UI_URL"),
            reports_url=_web_address("DIGEST_REPORTS_URL"),
            executor=_executor("DIGEST_EXECUTOR"),
            unsubscribe_keys=unsubscribe_keys(),
            events={name: found for name in EVENT_SETTINGS if (found := _several(f"DIGEST_EVENTS_{name}"))},
        )

    def digests(self) -> dict[str, Digest]:
        """Return every configured digest by name. Raises SpecError."""
        found = load_folder(self.specs)
        return found if self.sends else {name: digest.not_sending() for name, digest in found.items()}

    def digest(self, name: str) -> Digest:
        """Return one digest. Raises InputError naming those that exist."""
        digests = self.digests()
        if name not in digests:
            raise InputError(f"no digest called {name!r} in {self.specs}; there are: {', '.join(digests)}")
        return digests[name]


def unsubscribe_keys() -> tuple[str, ...]:
    """Return the keys that sign unsubscribe links, newest first. Raises InputError for one that is too short."""
    keys = _several("DIGEST_UNSUBSCRIBE_KEYS")
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise InputError(
            f"DIGEST_UNSUBSCRIBE_KEYS holds a key that is too short to sign with: at least {SHORTEST_KEY} characters"
        )
    return keys


def _several(variable: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[\s,]+", os.environ.get(variable) or "") if part)


def _is_on(variable: str) -> bool:
    text = os.environ.get(variable) or "on"
    if text not in ("on", "off"):
        # Anything else might be somebody's way of writing "off".
        raise InputError(f"{variable} is on or off, not {text!r}")
    return text == "on"


def _web_address(variable: str) -> str:
    """Return a URL that files can be linked under, without a slash at its end; "" for none."""
    text = (os.environ.get(variable) or "").rstrip("/")
    wrong = InputError(f"{variable} is the http(s) URL of a folder, as in https://host/reports")
    try:
        parts = urlsplit(text)
    except ValueError:  # whose text quotes the address
        raise wrong from None
    # It is shown to everybody who opens Dagster: no user, password or token belongs into it.
    is_plain = parts.scheme in ("http", "https") and parts.netloc and "@" not in parts.netloc
    if text and not (is_plain and not parts.query and not parts.fragment):
        raise wrong
    return text


def _executor(variable: str) -> Executor:
    text = os.environ.get(variable) or "in_process"
    if text == "celery":
        return "celery"
    if text != "in_process":
        raise InputError(f"{variable} is in_process or celery, not {text!r}")
    return "in_process"
