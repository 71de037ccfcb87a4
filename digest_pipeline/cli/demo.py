"""The demo command."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.markup import escape

from digest_pipeline.cli.output import json_option, say, show
from digest_pipeline.settings import Settings


@click.command()
@click.option(
    "--period", "label", default="1997-W12", show_default=True, help="A week from 1997-W01 to 1998-W26."
)
@click.option("--faults", type=click.Choice(["none", "harsh"]), default="none", show_default=True,
              help="harsh: the provider fails in every scripted way; starts from a fresh folder.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, help="Of the faults; the same seed fails alike.")
@json_option
def demo(label: str, faults: str, seed: int, as_json: bool) -> None:
    """Send one real week to the sandbox provider, through Dagster, and let its store judge.

    Exit 0 when no key was accepted twice, nobody was lost, store and ledger agree, and (without
    faults) every asset check passes. Run it again: nothing is sent twice.
    """
    from digest_pipeline.cli.progress import period_progress
    from digest_pipeline.demo.play import demo_home, play

    harsh = faults == "harsh"
    home = demo_home(Settings.from_environment(), harsh=harsh)

    def tell(text: str) -> None:
        if not as_json:
            say.print(f"[dim]{escape(text)}[/]")

    played = play(home, label, harsh=harsh, seed=seed, watch=period_progress, say=tell)
    found = played.as_json()
    if as_json:
        click.echo(json.dumps(found))
    else:
        states = played.summary.states
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
                "checks_passed": f"{sum(c.passed for c in played.checks.checks)} of {len(played.checks.checks)}",
                **({"faults_hit": played.faults, "runs": played.runs} if harsh else {}),
                "report": _shown(played.report),
                "seconds": round(played.seconds, 1),
            },
            False,
        )
        for check in played.checks.checks:
            if not check.passed:
                say.print(f"check {check.name}: {escape(check.description)}")
        if harsh and played.missed_faults:
            say.print(f"[red]faults that were not hit:[/] {', '.join(played.missed_faults)}")
    good = played.judgement.agrees and not played.missed_faults
    if not good or (not harsh and (played.checks_failed or not played.checks.succeeded)):
        raise SystemExit(1)


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
