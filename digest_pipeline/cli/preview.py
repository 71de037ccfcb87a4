"""Looking at one customer's mail without sending it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from digest_pipeline.cli.common import chosen, need_source, period_options
from digest_pipeline.cli.output import json_option, results, show
from digest_pipeline.content.message import Message
from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import InputError
from digest_pipeline.installation import open_ledger, open_source
from digest_pipeline.operations.preview import preview_message

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@period_options
@click.option("--customer", "customer_id", required=True, help="The customer's id.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=None, help="Write .eml and .html here."
)
@click.option("--eml", type=_FILE, default=None, help="Write the message as it goes out to this file.")
@click.option("--html", type=_FILE, default=None, help="Write its HTML part to this file.")
@json_option
def preview(
    digest_name: str,
    label: str,
    customer_id: str,
    out: Path | None,
    eml: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """The mail of one customer, frozen or as it would be frozen now. Sends and writes nothing to the ledger."""
    settings, digest, period = chosen(digest_name, label)
    need_source(settings)
    with open_ledger(settings) as ledger, open_source(settings, digest) as source:
        found = preview_message(ledger, source, digest, period, customer_id)
    facts: dict[str, Any] = {
        "operation_key": found.operation_key,
        "frozen": found.frozen,
        "state": found.state,
    }
    if found.message is None:
        show("preview", facts | {"message": f"none: {found.reason}"}, as_json)
        return
    if out is not None:
        eml, html = (
            eml or _named(out, found.operation_key, "eml"),
            html or _named(out, found.operation_key, "html"),
        )
    if eml is not None or html is not None:
        facts["files"] = _write(found.message, found.recipient, eml, html)
    if as_json:
        click.echo(
            json.dumps(
                facts
                | {"subject": found.message.subject, "text": found.message.text, "html": found.message.html}
            )
        )
        return
    show("preview", facts | {"subject": found.message.subject}, False)
    results.print(found.message.text, markup=False)


def _named(folder: Path, key: str, suffix: str) -> Path:
    return folder / ("".join(c if c.isalnum() or c in "._-" else "_" for c in key) + f".{suffix}")


def _write(message: Message, recipient: str, eml: Path | None, html: Path | None) -> list[str]:
    files: dict[Path, bytes] = {}
    if eml is not None:
        files[eml] = to_mime(message, recipient)
    if html is not None:
        files[html] = message.html.encode("utf-8")
    for path, data in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    return [str(path) for path in files]
