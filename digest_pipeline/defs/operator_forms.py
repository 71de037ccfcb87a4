"""The operator's forms in the Launchpad: what each job asks for, field by field."""

# No `from __future__ import annotations` here: Dagster reads the types of configuration classes.

from enum import Enum

import dagster as dg
from pydantic import Field

MOST_KEYS_IN_CONFIG = 100
"""Run configuration is stored and shown: a longer selection is given as a key file's path."""


class Signed(dg.Config):
    """Who orders it and why."""

    by: str = Field(description="Who decides: written to the audit trail as declared, not proven.")
    reason: str = Field(description="Why: written to the audit trail.")


class OfPeriod(Signed):
    """What an order about one period says."""

    digest: str = Field(description="Name of the digest.")
    period: str = Field(description="ISO week or a date in it: 2026-W42, 2026-10-14.")
    apply: bool = Field(default=False, description="Do it. Without this, only say what would be done.")


class OfKeys(OfPeriod):
    """What an order about single deliveries says."""

    keys: list[str] = Field(
        default=[], description=f"Operation keys, at most {MOST_KEYS_IN_CONFIG}; more: key_file."
    )
    key_file: str | None = Field(
        default=None, description="Path, on the worker, of a key file that `digest ... list --out` wrote."
    )
    tenant: str | None = Field(
        default=None, description="Whose customers; needed with several tenants, unless the key file says it."
    )


class ReplayConfig(OfKeys):
    """A replay's order."""

    hours: float = Field(default=24.0, description="How long the permission to send them lasts.")


class ApprovalConfig(Signed):
    """An approval."""

    number: int = Field(description="The number under which the replay waits.")
    apply: bool = Field(default=False, description="Do it. Without this, only say what would be done.")


class Verdict(Enum):
    """What a person knows about unknowns; NOT_SENT can cause a second mail."""

    SENT = "sent"
    NOT_SENT = "not-sent"
    WRITTEN_OFF = "written-off"


class ResolveConfig(OfKeys):
    """How unknowns are settled."""

    verdict: Verdict = Field(
        description="SENT, NOT_SENT (may be sent again: only with evidence) or WRITTEN_OFF."
    )


class Scope(Enum):
    """What a pause covers."""

    DIGEST = "digest"
    TENANT = "tenant"
    GATEWAY = "gateway"


class PauseConfig(Signed):
    """What to stop, or to let go on."""

    scope: Scope = Field(description="DIGEST, TENANT (of a digest) or GATEWAY (whatever digest uses it).")
    digest: str | None = Field(default=None, description="For DIGEST and TENANT.")
    tenant: str | None = Field(default=None, description="For TENANT.")
    gateway: str | None = Field(default=None, description="For GATEWAY: a gateway kind.")


class EraseConfig(Signed):
    """Whom to erase."""

    customer: str = Field(description="The customer's id; never an address.")
    digest: str | None = Field(default=None, description="Only of this digest.")
    tenant: str | None = Field(default=None, description="Whose customer; needed where tenants are named.")
    apply: bool = Field(default=False, description="Do it. Without this, only say what would be done.")
