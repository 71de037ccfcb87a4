"""The ``digest lab`` group: what tries to break the guarantees, and judges by the provider's own record."""

from __future__ import annotations

import click

from digest_pipeline.lab.chaos.command import chaos
from digest_pipeline.lab.crash.command import crash
from digest_pipeline.lab.model.command import explore_command


@click.group()
def lab() -> None:
    """Try to break the guarantees on this machine, with real processes and a provider that keeps count."""


lab.add_command(crash)
lab.add_command(chaos)
lab.add_command(explore_command)
