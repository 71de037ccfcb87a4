"""The gate that a team's CI asks before it lets a change of a digest through."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from digest_pipeline.cli.common import chosen, period_options
from digest_pipeline.cli.junit import junit_option, require_writable, write_junit
from digest_pipeline.cli.output import json_option, results, say, show
from digest_pipeline.errors import InputError


@click.command()
@period_options
@click.option("--source", metavar="URL|FILE.sql", default=None,
              help="The customer database: a SQLAlchemy URL, or an SQL file that fills one for this run.  "
              "[default: where the digest says]")  # fmt: skip
@click.option("--faults", type=click.Choice(["none", "light", "harsh"]), default="light", show_default=True,
              help="light: lost replies and refusals after which all still get one; harsh: every scripted way.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, help="Of the faults; the same seed fails alike.")
@click.option("--strict", is_flag=True, help="A check that only warns fails the gate, too.")
@click.option("--keep", metavar="FOLDER", default=None, type=click.Path(file_okay=False, path_type=Path),
              help="Leave ledger, report and provider's store there, to look into; it must be empty.")  # fmt: skip
@junit_option
@json_option
def gate(
    digest_name: str, label: str, source: str | None, faults: str, seed: int, strict: bool,
    keep: Path | None, junit: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Try a digest out for CI: one period, sent to a sandbox provider on this machine and nowhere else.

    Freezes, sends, sends again (which must send nothing), runs every asset check, and compares the
    ledger with the provider's own store. The digest's gateway, DIGEST_LEDGER_URL and DAGSTER_HOME are
    not used; all state is in a folder that is thrown away. Exit 0 only when all of it holds.
    """
    from digest_pipeline.cli.trial import try_period
    from digest_pipeline.cli.trial_setup import Trial

    _, digest, period = chosen(digest_name, label)
    require_writable(junit)
    with _home(keep) as home:
        tried = try_period(Trial(digest, period, source, faults, seed), home)
    failed = [one for one in tried.findings if one.fails(strict=strict)]
    facts: dict[str, Any] = {
        "digest": digest.name,
        "period": period.label,
        "eligible": tried.eligible,
        "sent": tried.sent,
        "sent_again": tried.sent_again,
        "accepted": tried.accepted,
        "states": tried.states,
        "runs": tried.runs,
        "faults_hit": tried.faults,
        "failed": len(failed),
        "seconds": round(tried.seconds, 1),
    }
    if junit is not None:
        write_junit(
            junit, f"digest gate {digest.name} {period.label}", tried.findings, tried.seconds, strict=strict
        )
    if as_json:
        show("", facts | {"findings": [one.row for one in tried.findings]}, True)
    else:
        for one in tried.findings:
            results.print(escape(f"{one.result:<7} {one.suite} {one.name}: {one.said}"))
        show("", facts, False)
    if failed:
        for one in failed:
            say.print(f"[red]{one.result}:[/] {escape(f'{one.suite} {one.name}: {one.said}')}")
        say.print(_next(keep))
        raise SystemExit(1)


@contextmanager
def _home(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="digest-gate-") as folder:
            yield Path(folder)
        return
    if keep.exists() and any(keep.iterdir()):
        raise InputError(f"--keep: {keep} is not empty; a gate starts from nothing")
    is_new = not keep.exists()
    keep.mkdir(parents=True, exist_ok=True)
    try:
        yield keep
    except InputError:  # nothing was tried, and the next try finds the folder as this one did
        for place in keep.iterdir():
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        if is_new:
            keep.rmdir()
        raise


def _next(keep: Path | None) -> str:
    if keep is None:
        return "To look into it: the same command with --keep FOLDER, which leaves the ledger and the report"
    kept = escape(str(keep))
    return f"To look into it: {kept}/reports, and DIGEST_HOME={kept} digest trace KEY (without DIGEST_LEDGER_URL)"
