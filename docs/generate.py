"""Write the pages that are drawn from the code: lifecycle, retry, specification, gateways, the command.

Run it with `make docs`; a test compares the pages with what it would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from pydantic import BaseModel

from digest_pipeline.cli.main import cli
from digest_pipeline.delivery.retry_policy import POLICY
from digest_pipeline.gateways.base import BatchKey, Capabilities, Idempotency
from digest_pipeline.gateways.registry import KINDS
from digest_pipeline.outcomes import FailureClass
from digest_pipeline.spec import Digest
from digest_pipeline.states import TRANSITIONS, HoldReason, State, SuppressionReason

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `make docs` from the code: edit that, not this page. -->\n"


def lifecycle() -> str:
    """The states and arrows of a delivery."""
    lines = [
        "# The life of a delivery",
        "",
        "One row of the ledger's `delivery` table lives through these states. Each arrow is one function in",
        "`digest_pipeline/ledger/transitions.py`, one UPDATE that also checks the state it starts from and the",
        "claim's token; a row that no longer matches is left alone.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> pending: content sealed",
        "    [*] --> suppressed: nothing to tell",
    ]
    for arrow in TRANSITIONS:
        if arrow.name != "apply_acceptance":
            lines += [f"    {s} --> {arrow.target}: {arrow.name}" for s in _ordered(arrow.sources)]
    lines += ["```", "", "`apply_acceptance` leads to `sent` from every state but `sent` and `cleaned`.", ""]
    lines += ["| arrow | from | to | when | ambiguity |", "|---|---|---|---|---|"]
    for arrow in TRANSITIONS:
        sources = ", ".join(_ordered(arrow.sources))
        lines.append(f"| `{arrow.name}` | {sources} | {arrow.target} | {arrow.when} | {arrow.ambiguity} |")
    lines += [
        "",
        "A row may be held: it waits, and will not go by itself. Reasons: "
        + ", ".join(f"`{reason}`" for reason in HoldReason)
        + ".",
        "",
        "A row is suppressed for one of: " + ", ".join(f"`{reason}`" for reason in SuppressionReason) + ".",
    ]
    return "\n".join(lines)


def _ordered(states: frozenset[State]) -> list[str]:
    return [str(state) for state in State if state in states]


def retry() -> str:
    """What each failure class does."""
    lines = [
        "# Retry policy",
        "",
        "An attempt's end has a class; the class decides, not a count alone. While a delivery is ambiguous,",
        "nothing but an acceptance ends that: a refusal of the second attempt says nothing about the first.",
        "",
        "| class | the row | counts against the budget | the gate |",
        "|---|---|---|---|",
    ]
    for failure_class in FailureClass:
        policy = POLICY[failure_class]
        lines.append(
            f"| {failure_class} | {policy.row} | {'yes' if policy.charged else 'no'} | {policy.gate} |"
        )
    lines += [
        "",
        "The wait before attempt n + 1 is uniform in half to whole of `min(cap, base * 2^(n-1))`, from the",
        "specification's `retry` section (30 s and 1800 s by default). A delivery is `dead` after",
        "`max_attempts` charged attempts or `max_age_hours` after the first, whichever comes first.",
        "`Retry-After`, in seconds or as a date, closes the rate gate for everyone who sends with the account.",
    ]
    return "\n".join(lines)


def spec() -> str:
    """Every field of a digest's specification."""
    lines = [
        "# A digest's specification",
        "",
        "One YAML file in the folder that `DIGEST_SPECS` names is one digest: its own asset group, job,",
        "schedule and checks. `digest_pipeline/specs/customer_digest.yaml` is a whole example.",
        "`extends: other.yaml` starts from another file and replaces what it names; `customers.sql_file` and",
        "`content.sql_file` read the SQL from a file. A wrong field is refused with the file, the field and",
        "the nearest valid name, before anything is written.",
        "",
        "| field | type | default | |",
        "|---|---|---|---|",
    ]
    return "\n".join([*lines, *_fields(Digest, "")])


def _fields(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        nested = _model_in(field.annotation)
        if nested is not None and name not in ("source",):
            doc = (nested.__doc__ or "").strip().splitlines()[0].replace("``", "`")
            yield f"| **`{prefix}{name}`** | | | {doc} |"
            yield from _fields(nested, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else f"`{_value(field.default)}`"
        yield f"| `{prefix}{name}` | {_type(field.annotation)} | {default} | {field.description or ''} |"


def _value(default: Any) -> str:
    if isinstance(default, str):
        return default or '""'
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _type(annotation: Any) -> str:
    if get_origin(annotation) is dict:
        return "mapping"
    if get_origin(annotation) is list:
        return "list"
    if isinstance(annotation, type):
        if issubclass(annotation, StrEnum):
            return " or ".join(annotation)
        return {"EnvSetting": "mapping", "Path": "path", "NoneType": "none"}.get(
            annotation.__name__, annotation.__name__
        )
    return " or ".join(_type(one) if isinstance(one, type) else str(one) for one in get_args(annotation))


def gateways() -> str:
    """Every kind of gateway: what it can do, and what it is told."""
    lines = [
        "# Gateways",
        "",
        "A digest names one under `gateway.kind`, and its settings under `gateway.settings`. How an `unknown` is settled follows",
        "from what the provider can do; the [runbook](runbook.md) says what each of these cannot promise. A setting marked",
        "*secret* has to come from the environment: `api_key: {env: RESEND_API_KEY}`. Any capability may be given as a setting,",
        "too, where your account differs from what its provider documents. `digest gateways` prints the same.",
        "",
        "No provider was reached while this was written. Each gateway is tested against an emulation in a process of its own,",
        "whose docstring, like the gateway's, says what is documented and what is assumed. Try yours with `digest send-test`",
        "before the first week. How to write another: [adding_a_gateway.md](adding_a_gateway.md).",
        "",
        "| kind | repeats by key | asked by our key | messages in a call | says delivered | letters outside ASCII before the @ |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| [`{name}`](#{name}) | {_can(kind.capabilities)} |" for name, kind in KINDS.items()]
    for name, kind in KINDS.items():
        lines += ["", f"## {name}", "", f"{kind.summary[0].upper()}{kind.summary[1:]}.", ""]
        lines += ["| setting | |", "|---|---|"]
        for setting, word in kind.settings.items():
            lines.append(f"| `{setting}`{', secret' if setting in kind.secrets else ''} | {word} |")
    return "\n".join(lines)


def _can(can: Capabilities) -> str:
    keys = {Idempotency.NONE: "no", Idempotency.REFUSES: "no, it refuses one", Idempotency.REPLAYS: "yes"}
    key = keys[can.idempotency] + (f", for {_span(can.key_lifetime)}" if can.key_lifetime else "")
    asked = "no"
    if can.visibility_delay is not None and can.look_up_retention is not None:
        asked = f"after {_span(can.visibility_delay)}, for {_span(can.look_up_retention)}"
    covers = {BatchKey.NONE: "", BatchKey.PER_MESSAGE: ", a key each", BatchKey.PER_BATCH: " under one key"}
    several = "1" if can.batch_size == 1 else f"{can.batch_size}{covers[can.batch_key]}"
    return " | ".join(
        (key, asked, several, "yes" if can.delivered_proof else "no", "yes" if can.smtputf8 else "no")
    )


def _span(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length and seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds" if seconds else "0 seconds"


def command() -> str:
    """Every command with its help."""
    lines = ["# The `digest` command", ""]
    for path, found in _commands(cli, "digest"):
        context = click.Context(found, info_name=path, max_content_width=100)
        lines += [f"## `{path}`", "", "```", found.get_help(context).rstrip(), "```", ""]
    return "\n".join(lines)


def _commands(found: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, found
    if isinstance(found, click.Group):
        for name in sorted(found.commands):
            yield from _commands(found.commands[name], f"{path} {name}")


PAGES = {
    "lifecycle.md": lifecycle,
    "retry.md": retry,
    "spec.md": spec,
    "gateways.md": gateways,
    "cli.md": command,
}


def pages() -> dict[str, str]:
    """Return each page's file name and text."""
    return {name: f"{NOTE}\n{write().rstrip()}\n" for name, write in PAGES.items()}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")
