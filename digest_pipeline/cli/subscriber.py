"""The servers of the push design: the subscriber, and the content path on the pipeline's side."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from digest_pipeline.cli.receipts import receipts_command, resolve_command
from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.errors import InputError
from digest_pipeline.installation import make_gateway, open_ledger
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import Settings
from digest_pipeline.subscriber import log
from digest_pipeline.subscriber.app import Pushes, content_app, subscriber_app
from digest_pipeline.subscriber.content import Contents, HttpContents, LedgerContents
from digest_pipeline.subscriber.server import Listening, serve
from digest_pipeline.subscriber.settings import SECRET, TOKEN, SubscriberSettings, content_tokens
from digest_pipeline.telemetry import configure_logging

Command = Callable[..., Any]


def listening_options(command: Command) -> Command:
    """Add where to listen, and as whom."""
    for option in (
        click.option("--until-stdin-closes", is_flag=True, hidden=True),
        click.option("--key", type=click.Path(path_type=Path, exists=True, dir_okay=False),
                     help="Its private key (PEM, unencrypted)."),
        click.option("--cert", type=click.Path(path_type=Path, exists=True, dir_okay=False),
                     help="Certificate chain (PEM).  [default: plain HTTP, for a proxy that ends TLS]"),
        click.option("--port", type=click.IntRange(0, 65535), default=8443, show_default=True,
                     help="0 takes a free one."),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group()
def subscriber() -> None:
    """The HTTPS end: takes pushes and sends them, and hears what providers report."""


@subscriber.command("serve")
@click.option(
    "--digest", "names", multiple=True, help="Take pushes of this one only; may be repeated.  [default: all]"
)
@listening_options
@click.pass_context
def serve_subscriber(
    context: click.Context, /, names: tuple[str, ...], until_stdin_closes: bool, **where: Any
) -> None:
    """Take pushes of the https_push gateway and send them through the gateways of DIGEST_SUBSCRIBER_SPECS.

    Each key is decided once, durably, before it is answered. Routes: /push where DIGEST_SUBSCRIBER_SECRET is
    set, /events/<provider> and /unsubscribe/<token> where their variables are, /healthz, /openapi.json.
    The ledger is made or migrated when it needs it. See docs/push.md for the variables.
    """
    _info_unless_told(context)
    settings = SubscriberSettings.from_environment()
    with _own_ledger(settings) as ledger:
        pushes = None if settings.signer is None else _pushes(settings, ledger, names)
        if pushes is None and names:
            raise InputError(f"--digest takes pushes, which need {SECRET}")
        app = subscriber_app(ledger, settings.own, pushes)
        _serve(app, where, sorted(pushes.plans) if pushes else [], until_stdin_closes)


subscriber.add_command(receipts_command)
subscriber.add_command(resolve_command)


@click.group()
def content() -> None:
    """The content path: what a subscriber on another host fetches messages from."""


@content.command("serve")
@listening_options
@click.pass_context
def serve_content(context: click.Context, /, until_stdin_closes: bool, **where: Any) -> None:
    """Give out frozen messages of the ledger that are still to be settled, to whoever has DIGEST_CONTENT_TOKEN.

    Let it be reached by subscribers only, and over TLS: what it gives out holds addresses.
    """
    _info_unless_told(context)
    tokens = content_tokens()
    if not tokens:
        raise InputError(f"{TOKEN} is not set: it is what opens the content path")
    if where["cert"] is None and where["host"] not in ("127.0.0.1", "::1", "localhost"):
        raise InputError(
            "what the content path gives out holds addresses: give --cert and --key, or listen at 127.0.0.1 "
            "behind a proxy that ends TLS"
        )
    with open_ledger(Settings.from_environment()) as ledger:
        _serve(content_app(ledger, tokens), where, [], until_stdin_closes)


def _pushes(settings: SubscriberSettings, ledger: Ledger, names: Sequence[str]) -> Pushes:
    assert settings.signer is not None
    digests = settings.digests()
    for name in names:
        if name not in digests:
            raise InputError(
                f"no digest called {name!r} in {settings.specs}; there are: {', '.join(digests)}"
            )
    plans: Mapping[str, SendPlan] = {
        name: SendPlan(digest, (), make_gateway(digest), "subscriber", str(os.getpid()))
        for name, digest in digests.items()
        if not names or name in names
    }
    return Pushes(settings.signer, plans, _contents(settings, ledger))


def _contents(settings: SubscriberSettings, ledger: Ledger) -> Contents:
    if settings.content_url:
        return HttpContents(settings.content_url, settings.content_tokens, settings.content_ca_file)
    if settings.ledger_url == settings.base.ledger_url:
        return LedgerContents(ledger)
    return LedgerContents(open_ledger(settings.base))


def _own_ledger(settings: SubscriberSettings) -> Ledger:
    """Return the subscriber's ledger, migrated: whoever runs it need not know the pipeline's commands."""
    with Ledger(settings.ledger_url) as ledger:
        migrate.upgrade(ledger, settings.base.environment)
    return open_ledger(settings.own)


def _serve(app: Any, where: Mapping[str, Any], digests: list[str], until_stdin_closes: bool) -> None:
    def ready(url: str) -> None:
        paths = [route.path for route in app.routes]
        click.echo(json.dumps({"ready": True, "url": url, "pid": os.getpid()}))
        log.subscriber_started(url, digests, paths)

    listening = Listening(where["host"], where["port"], where["cert"], where["key"])
    serve(app, listening, ready, until_stdin_closes=until_stdin_closes)


def _info_unless_told(context: click.Context) -> None:
    root = context.find_root()
    if root.get_parameter_source("log_level") is ParameterSource.DEFAULT:
        configure_logging("INFO")
