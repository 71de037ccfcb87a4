"""Commands about who is told: a test of the channels, and what is open."""

from __future__ import annotations

from typing import Any

import click

from digest_pipeline.cli.common import digest_option
from digest_pipeline.cli.output import json_option, results, say, show, show_rows
from digest_pipeline.installation import open_ledger
from digest_pipeline.instants import as_datetime
from digest_pipeline.ledger import incidents
from digest_pipeline.ledger.incidents import Incident
from digest_pipeline.notify.channels import LOG, Told
from digest_pipeline.notify.rehearse import rehearse
from digest_pipeline.notify.wording import headline
from digest_pipeline.settings import Settings


@click.group()
def notify() -> None:
    """Who is told when a person is needed: test the channels, list what is open."""


@notify.command("test")
@digest_option
@json_option
def test_channels(digest_name: str, as_json: bool) -> int:
    """Send a test notification through every channel of a digest, and say what happened.

    Exit code 1 when a channel could not be told. Channels are the fields of `notify` in the specification.
    """
    settings = Settings.from_environment()
    digest = settings.digest(digest_name)
    with open_ledger(settings) as ledger:
        ended = rehearse(ledger, settings, digest)
    facts = {
        channel: " ".join(filter(None, (tried.told, tried.why))) if tried else "told by a sensor"
        for channel, tried in ended.items()
    }
    show(f"notifications of {digest_name}", facts, as_json)
    if set(ended) <= {LOG}:
        say.print("only the log is told: the specification's notify names no channel")
    return int(any(tried is not None and tried.told is not Told.YES for tried in ended.values()))


@notify.command("list")
@click.option("--digest", "digest_name", default=None, help="Only of this digest.")
@json_option
def list_open(digest_name: str | None, as_json: bool) -> None:
    """List the open incidents: what people were told of, and is not well yet."""
    settings = Settings.from_environment()
    if digest_name is not None:
        settings.digest(digest_name)
    with open_ledger(settings) as ledger, ledger.read() as conn:
        found = [_row(one) for one in incidents.open_ones(conn, digest_name)]
    if as_json:
        show("incidents", {"open": found}, as_json)
        return
    show_rows("open incidents", found)
    if not found:
        results.print("no incident is open")


def _row(one: Incident) -> dict[str, Any]:
    return {
        "since": as_datetime(one.opened_at).isoformat(timespec="seconds"),
        "severity": one.severity,
        "what": headline(one),
        "times": one.times,
        "id": one.id,
    }
