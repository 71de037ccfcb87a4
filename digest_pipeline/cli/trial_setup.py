"""What a trial changes of a digest and of this process, so that nothing real is reached."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from digest_pipeline.defs.run import make_instance
from digest_pipeline.demo.play import environment_of
from digest_pipeline.errors import InputError
from digest_pipeline.lab.sandbox.faults import Fault, Rule, harsh
from digest_pipeline.outcomes import Proof
from digest_pipeline.periods import Period
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest, GatewayChoice, Notify, Objective, Rate, Retry, Sending

_LIGHT = (
    Fault.RESET_AFTER_ACCEPT,
    Fault.UNAVAILABLE_503,
    Fault.BAD_GATEWAY_502_AFTER_ACCEPT,
    Fault.RESET_BEFORE_ACCEPT,
    Fault.THROTTLED_429,
    Fault.HTML_200_AFTER_ACCEPT,
)
"""Lost replies and refusals after which everybody still gets a message."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried. ``source``: a SQLAlchemy URL or an SQL file; None: where the digest says."""

    digest: Digest
    period: Period
    source: str | None
    faults: str
    seed: int


def tried_out(trial: Trial, url: str, key: str) -> Digest:
    """Return the digest as it is tried: to the sandbox at ``url``, at once, without long pauses."""
    digest = trial.digest
    changes = {
        "gateway": GatewayChoice(kind="sandbox", settings={"url": url, "api_key": key}),
        "rate": Rate(per_second=2000, burst=600),
        "sending": Sending(timeout_seconds=3, lease_seconds=30, in_run_wait_seconds=20),
        "retry": Retry(base_seconds=0.2, cap_seconds=1, connect_failures_to_halt=100),
        "notify": Notify(),  # nobody is told of a trial, and CI has none of these variables
        "cleanup": digest.cleanup.model_copy(update={"delay_hours": 0.0, "proof": Proof.ACCEPTED}),
    }
    if trial.faults == "harsh":
        # The provider refuses some recipients for good; how many is the plan's choice, not the digest's.
        changes["objective"] = Objective(coverage=0)
    return digest.model_copy(update=changes)


def fault_rules(trial: Trial) -> list[Rule]:
    """Return what the provider does wrong: each fault at a certain customer, and some by the seed."""
    if trial.faults == "harsh":
        return harsh(trial.seed, first=2, every=1)
    if trial.faults == "light":
        certain = [Rule(fault, nth_key=place) for place, fault in enumerate(_LIGHT, start=1)]
        return certain + [Rule(fault, share=0.01, seed=trial.seed) for fault in _LIGHT]
    return []


@contextmanager
def environment(trial: Trial, home: Path) -> Iterator[Settings]:
    """Point this process at the folder, whatever the environment said, and back."""
    home = home.absolute()
    make_instance(home / "dagster")
    wanted = {
        "DAGSTER_HOME": str(home / "dagster"),
        "DIGEST_HOME": str(home),
        "DIGEST_LEDGER_URL": f"sqlite:///{home / 'ledger.db'}",
        "DIGEST_ENVIRONMENT": "trial",
        "DIGEST_SENDING": "on",
        "DIGEST_EXECUTOR": "in_process",
        "DIGEST_REPORTS": str(home / "reports"),
        "DIGEST_REPORTS_URL": "",
    }
    if trial.source is not None:
        wanted[trial.digest.source.env] = _source_url(trial.source, home)
    elif named := os.environ.get(
        trial.digest.source.env
    ):  # its {home} is the installation's, not this folder
        wanted[trial.digest.source.env] = named.replace("{home}", str(Settings.from_environment().home))
    with environment_of(wanted):
        yield Settings.from_environment()


def _source_url(source: str, home: Path) -> str:
    if not source.endswith(".sql"):
        return source
    try:
        statements = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--source: {source} cannot be read ({type(error).__name__})") from error
    place = home / "source.db"
    try:
        with closing(sqlite3.connect(place)) as conn, conn:
            conn.executescript(statements)
    except sqlite3.Error as error:
        raise InputError(f"--source: {source} is not SQL that SQLite takes: {error}") from error
    return f"sqlite:///{place}"
