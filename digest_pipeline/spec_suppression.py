"""When an address that bounces is left alone: the part of a specification that provider events feed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Suppression(BaseModel):
    """After how many bounces an address of a tenant is left alone, and for how long.

    Bounces are counted by message, whatever digest it was of. A complaint or an opt-out counts at once
    and does not expire.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hard_bounces: int = Field(1, ge=1, description="permanent ones that suppress an address")
    hard_bounce_days: float = Field(90, gt=0, description="for how long")
    soft_bounces: int = Field(4, ge=1, description="of either kind that suppress an address")
    soft_bounce_days: float = Field(30, gt=0, description="for how long")
    within_days: float = Field(90, gt=0, description="older bounces count no more")


DEFAULT_SUPPRESSION = Suppression()
"""For what is of no known digest."""
