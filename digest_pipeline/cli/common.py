"""What several commands share: naming a digest and a period, and the sandbox that the demo sends to."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import click

from digest_pipeline.cli.output import say
from digest_pipeline.installation import find_period
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.periods import Period
from digest_pipeline.settings import DEMO_SPECS, Settings
from digest_pipeline.spec import Digest

Command = Callable[..., Any]


def digest_option(command: Command) -> Command:
    """Add --digest."""
    return click.option("--digest", "digest_name", required=True, help="Name of the digest.")(command)


def period_options(command: Command) -> Command:
    """Add --digest and --period."""
    period = click.option(
        "--period", "label", required=True, help="ISO week or a date in it: 2026-W42, 2026-10-14."
    )
    return digest_option(period(command))


def chosen(digest_name: str, label: str) -> tuple[Settings, Digest, Period]:
    """Return the settings, the digest and the period that a command was given. Raises InputError."""
    settings = Settings.from_environment()
    digest, period = find_period(settings, digest_name, label)
    return settings, digest, period


def need_source(settings: Settings) -> None:
    """Make the demo's customer database where everything is the demo's, as the main help promises."""
    from digest_pipeline.demo.play import prepare_source

    if settings.specs == DEMO_SPECS and "DIGEST_SOURCE_URL" not in os.environ:
        prepare_source(settings)


def os_user() -> str:
    """Return who runs this process: declared to the audit trail, not proven."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        return f"uid {os.getuid()}"


@contextmanager
def sandbox_for(settings: Settings, digest: Digest) -> Iterator[None]:
    """Keep the local sandbox provider running while a digest that sends to it is worked on.

    Does nothing for every other gateway, and when something answers at the sandbox's address already.
    """
    if digest.gateway.kind != "sandbox":
        yield
        return
    resolved = digest.gateway.resolved()
    place = urlsplit(resolved["url"])
    host, port = place.hostname or "127.0.0.1", place.port or 80
    if host not in ("127.0.0.1", "localhost") or _answers(host, port):
        yield
        return
    settings.home.mkdir(parents=True, exist_ok=True)
    sandbox = SandboxSettings(host=host, port=port, api_key=resolved["api_key"])
    with SandboxProcess(settings.home / "sandbox.db", sandbox):
        say.print(f"[dim]sandbox provider started at {resolved['url']} for the length of this command[/]")
        yield


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
