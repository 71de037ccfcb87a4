"""The pull worker as a command: a process that sends, opens no port and needs no Dagster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from click.core import ParameterSource
from rich.status import Status

from digest_pipeline.cli.output import json_option, say, show
from digest_pipeline.delivery.worker import Duty, Worked, Worker
from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.gateways.kinds import duration
from digest_pipeline.installation import make_gateway, open_ledger
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.witness import Witness
from digest_pipeline.operations.late import allow_as_specified
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest
from digest_pipeline.telemetry import configure_logging


@click.command()
@click.option("--digest", "names", multiple=True, help="Only this one; may be repeated.  [default: all]")
@click.option("--once", is_flag=True, help="Do what is due now, and end.")
@click.option("--poll", default="30s", show_default=True, help="Time between looks that find nothing.")
@json_option
@click.pass_context
def worker(context: click.Context, names: tuple[str, ...], once: bool, poll: str, as_json: bool) -> None:
    """Send what is due in sealed periods, again and again, until SIGTERM. No port is opened; no Dagster needed.

    It does the senders' work from the ledger alone: freezing, reports and cleanup stay with Dagster's runs.
    Any number of workers may run at once. On SIGTERM or Ctrl-C it settles what is under way and releases the
    rest; whatever way it ends, nothing is sent twice.

    Logs are at the level INFO unless --log-level says otherwise.
    """
    parent = context.parent
    if parent is not None and parent.get_parameter_source("log_level") is ParameterSource.DEFAULT:
        configure_logging("INFO")
    seconds = _seconds(poll)
    settings = Settings.from_environment()
    digests = [settings.digest(name) for name in names] or list(settings.digests().values())
    with open_ledger(settings) as ledger, _status_line() as status:
        duties = [_duty(ledger, digest) for digest in digests]
        witness = Witness(settings.home, ledger.describe())
        watch = (lambda text: status.update(text)) if status is not None else (lambda _: None)
        made = Worker(ledger, duties, settings.environment, witness, seconds, watch)
        done = asyncio.run(_until_told(made, once))
    _tell(digests, done, as_json)


def _seconds(poll: str) -> float:
    try:
        return duration("--poll", poll).total_seconds()
    except SpecError as error:
        raise InputError(str(error)) from None


def _duty(ledger: Ledger, digest: Digest) -> Duty:
    make_gateway(digest)  # a wrong setting ends the command before anything is sent
    return Duty(digest, partial(make_gateway, digest), partial(_begin, ledger, digest))


def _begin(ledger: Ledger, digest: Digest, label: str) -> None:
    allow_as_specified(ledger, digest, digest.period(label))


async def _until_told(worker: Worker, once: bool) -> Worked:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def told() -> None:
        stop.set()
        for one in signals:
            loop.remove_signal_handler(one)  # a second one ends the process at once

    for one in signals:
        loop.add_signal_handler(one, told)
    return await worker.run(stop, once=once)


@contextmanager
def _status_line() -> Iterator[Status | None]:
    """Show what the worker is at; None without a terminal, where the log tells it."""
    if not say.is_terminal:
        yield None
        return
    with say.status("looks for work") as status:
        yield status


def _tell(digests: Sequence[Digest], done: Worked, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "digests": [digest.name for digest in digests],
        "sending": all(digest.sending.enabled for digest in digests),
        "accepted": done.accepted,
        "halted": done.halted,
        "refused": done.refused,
    }
    show("worker", facts, as_json)
    if done.halted or done.refused:
        raise SystemExit(1)
