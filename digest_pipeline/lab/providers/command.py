"""The command that starts an emulated provider: ``python -m digest_pipeline.lab.providers``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from digest_pipeline.lab.providers.calls import CallStore
from digest_pipeline.lab.providers.emulation import Emulation
from digest_pipeline.lab.providers.registry import EMULATIONS
from digest_pipeline.lab.providers.service import Service
from digest_pipeline.lab.sandbox.command import serve_command
from digest_pipeline.lab.sandbox.provider import Provider
from digest_pipeline.lab.sandbox.server import Handler, serve_with
from digest_pipeline.lab.sandbox.settings import SandboxSettings


@click.command("emulate")
@click.option("--provider", type=click.Choice(sorted(EMULATIONS)), required=True)
@click.pass_context
def emulate_command(
    context: click.Context, /, provider: str, store: Path, until_stdin_closes: bool, **options: Any
) -> None:
    """Serve one provider's mail API, which records what it accepts and fails on demand.

    When it is ready it prints one line of JSON with its URL. What isn't given is as that provider
    documents it.
    """

    def ready(url: str) -> None:
        click.echo(json.dumps({"ready": True, "url": url, "store": str(store), "pid": os.getpid()}))

    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    emulation = EMULATIONS[provider]()
    settings = settings_of(emulation, **given)
    serve_with(lambda: CallStore(store), _handler(emulation), settings, ready, until_stdin_closes)


# The sandbox's own switches, under the same names.
emulate_command.params += serve_command.params


def settings_of(emulation: Emulation | type[Emulation], **given: Any) -> SandboxSettings:
    """Return a provider's switches as it documents them, but for those given."""
    return SandboxSettings(**{**emulation.settings, **given})


def _handler(emulation: Emulation) -> Any:
    def made(settings: SandboxSettings, store: CallStore) -> Handler:
        return Service(Provider(settings, store), emulation, store).dispatch

    return made
