"""The command that starts the SMTP server: ``python -m digest_pipeline.lab.smtp``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from digest_pipeline.lab.sandbox.command import serve_command
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.lab.smtp.server import SmtpServer, serve_smtp


@click.command("smtp")
@click.option("--smtputf8/--no-smtputf8", default=True, show_default=True, help="Offer SMTPUTF8.")
@click.option("--starttls/--no-starttls", default=True, show_default=True, help="Offer STARTTLS.")
@click.option("--size", default=10_000_000, show_default=True, help="Octets of a message that are taken.")
def smtp_command(
    store: Path, until_stdin_closes: bool, smtputf8: bool, starttls: bool, size: int, **options: Any
) -> None:
    """Serve SMTP on free ports of this machine, recording what is accepted and failing on demand.

    When it is ready it prints one line of JSON with the ports and the certificate to trust. The API key is
    ``user:password`` of its one login; without a colon nobody has to log in.
    """
    server = SmtpServer(store, smtputf8=smtputf8, size=size, starttls=starttls)

    def ready(url: str) -> None:
        found = {"ready": True, "url": url, "store": str(store), "pid": os.getpid(), **server.addresses}
        click.echo(json.dumps(found))

    serve_smtp(server, store, SandboxSettings(**options), ready, until_stdin_closes)


# The store, the admin side's port and the rest of the sandbox's own switches.
smtp_command.params += serve_command.params
