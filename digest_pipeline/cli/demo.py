"""The demo command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from digest_pipeline.cli.output import json_option, say, show
from digest_pipeline.demo.providers import PROVIDERS, Stage
from digest_pipeline.settings import Settings

if TYPE_CHECKING:
    from digest_pipeline.demo.play import Played


@click.command()
@click.option(
    "--period", "label", default="1997-W12", show_default=True, help="A week from 1997-W01 to 1998-W26."
)
@click.option("--gateway", type=click.Choice(list(PROVIDERS)), default="sandbox", show_default=True,
              help="Through which gateway; each has a folder of its own.")  # fmt: skip
@click.option("--faults", type=click.Choice(["none", "harsh"]), default="none", show_default=True,
              help="harsh: the provider fails in every scripted way; starts from a fresh folder.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, help="Of the faults; the same seed fails alike.")
@json_option
def demo(label: str, gateway: str, faults: str, seed: int, as_json: bool) -> None:
    """Send one real week to a provider on this machine, through Dagster, and let its store judge.

    Exit 0 when no key was accepted twice, nobody was lost, store and ledger agree, and (without
    faults) every asset check passes. Run it again: nothing is sent twice. An SMTP server knows no keys
    and cannot be asked: what it may have accepted without a word stays unknown, and is listed.
    """
    from digest_pipeline.cli.progress import period_progress
    from digest_pipeline.demo.play import demo_home, play

    harsh = faults == "harsh"
    home = demo_home(Settings.from_environment(), gateway, harsh=harsh)

    def tell(text: str) -> None:
        if not as_json:
            say.print(f"[dim]{escape(text)}[/]")

    played = play(Stage(home, harsh, seed), gateway, label, watch=period_progress, say=tell)
    if as_json:
        click.echo(json.dumps(played.as_json()))
    else:
        _show(played, home, harsh)
    if not played.proves_it or (not harsh and (played.checks_failed or not played.checks.succeeded)):
        raise SystemExit(1)


def _show(played: Played, home: Path, harsh: bool) -> None:
    states, checks = played.summary.states, played.checks.checks
    show(
        f"{played.digest} {played.period}",
        {
            "eligible": played.summary.entries,
            "sent_now": played.sent_now,
            "sent": states["sent"] + states["cleaned"],
            "cleaned": states["cleaned"],
            "suppressed": states["suppressed"],
            "unknown": states["unknown"],
            "failed": states["failed"] + states["dead"],
            "waiting": states["pending"] + states["retry"] + states["claimed"],
            "duplicates": played.judgement.duplicates,
            "lost": played.judgement.lost,
            "checks_passed": f"{sum(check.passed for check in checks)} of {len(checks)}",
            **({"faults_hit": played.faults, "runs": played.runs} if harsh else {}),
            "report": _shown(played.report),
            "seconds": round(played.seconds, 1),
        },
        False,
    )
    for check in checks:
        if not check.passed:
            say.print(f"check {check.name}: {escape(check.description)}")
    if states["unknown"]:
        say.print(_of_unknowns(played, home), soft_wrap=True)
    if played.missed_faults:
        say.print(f"[red]faults that were not hit:[/] {', '.join(played.missed_faults)}")


def _of_unknowns(played: Played, home: Path) -> str:
    found = played.judgement
    return (
        f"{found.unknown} unknown: the provider accepted {found.in_doubt} of them and its answers were lost. "
        "None is sent again without evidence; to list them: "
        f"DIGEST_HOME={escape(_shown(home))} digest unknowns list --digest {played.digest} --period {played.period}"
    )


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
