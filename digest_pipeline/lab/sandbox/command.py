"""The command that starts the sandbox provider."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.lab.sandbox.server import serve
from digest_pipeline.lab.sandbox.settings import SandboxSettings

API_KEY_VARIABLE = "DIGEST_SANDBOX_API_KEY"

_DEFAULT = SandboxSettings()


@click.command("serve")
@click.option("--store", type=click.Path(path_type=Path, dir_okay=False), default=Path("sandbox.db"), show_default=True,
              help="SQLite file of what was accepted; kept between starts.")  # fmt: skip
@click.option("--host", default=_DEFAULT.host, show_default=True)
@click.option("--port", default=8025, show_default=True, help="0 takes a free one.")
@click.option("--api-key", envvar=API_KEY_VARIABLE, default=_DEFAULT.api_key, show_envvar=True)
@click.option("--latency-ms", default=_DEFAULT.latency_ms, show_default=True, help="From arrival to answer.")
@click.option("--idempotency", type=click.Choice([mode.value for mode in Idempotency]),
              default=_DEFAULT.idempotency.value, show_default=True,
              help="What a repeated Idempotency-Key gets: its first answer, a refusal, or a second mail.")  # fmt: skip
@click.option("--key-lifetime", default=_DEFAULT.key_lifetime, show_default=True, help="Seconds.")
@click.option("--look-up/--no-look-up", default=_DEFAULT.look_up, show_default=True)
@click.option("--visibility-delay", default=_DEFAULT.visibility_delay, show_default=True, help="Seconds.")
@click.option("--retention", default=_DEFAULT.retention, show_default=True, help="Seconds look-ups go back.")
@click.option(
    "--rate", type=float, default=None, help="Messages a second; above it 429.  [default: no limit]"
)
@click.option("--burst", type=float, default=None, help="Messages at once.  [default: one second's worth]")
@click.option("--profile", type=click.Choice(["none", "harsh"]), default="none", show_default=True,
              help="harsh: every fault at least once, and a seeded share.")  # fmt: skip
@click.option("--seed", default=0, show_default=True)
@click.option("--until-stdin-closes", is_flag=True, help="End when the starting process goes away.")
def serve_command(store: Path, until_stdin_closes: bool, **options: Any) -> None:
    """Serve a mail API that records what it accepts and fails on demand.

    When it is ready it prints one line of JSON with its URL.
    """

    def ready(url: str) -> None:
        click.echo(json.dumps({"ready": True, "url": url, "store": str(store), "pid": os.getpid()}))

    serve(SandboxSettings(**options), store, ready, until_stdin_closes)


def arguments(settings: SandboxSettings) -> list[str]:
    """Return the options that give ``serve_command`` these settings; the API key isn't among them."""
    options = settings.public()
    options.pop("look_up")
    found = ["--look-up" if settings.look_up else "--no-look-up"]
    for name, value in options.items():
        if value is not None:
            found += [f"--{name.replace('_', '-')}", str(value)]
    return found
