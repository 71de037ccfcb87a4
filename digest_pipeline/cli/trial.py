"""A trial of one period: the whole pipeline in a folder of its own, against a sandbox provider.

The digest is the installation's, but for what would reach the world or make CI wait: its gateway is a
sandbox process on this machine, its ledger and Dagster's state are in the folder, its rate and its
pauses are short. Its queries, its template, its keys, its checks and the send loop are the real ones.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from digest_pipeline.cli.common import need_source
from digest_pipeline.cli.junit import Finding, Result, findings_of
from digest_pipeline.cli.progress import period_progress
from digest_pipeline.cli.trial_setup import Trial, environment, fault_rules, tried_out
from digest_pipeline.defs.run import RunOutcome, run_checks, run_period
from digest_pipeline.demo.judge import judge
from digest_pipeline.errors import InputError, SourceError
from digest_pipeline.installation import open_source
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.ledger import migrate, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.reads import Summary
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest

MOST_RUNS = 6
"""Runs until a period with faults is settled: a halted one needs another after the account works again."""

_LATE = "a trial: only the sandbox provider gets this"


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of it. ``states`` and ``sent`` are the ledger's, ``accepted`` the provider's."""

    findings: tuple[Finding, ...]
    eligible: int
    states: dict[str, int]
    sent: int
    sent_again: int
    accepted: int
    runs: int
    faults: dict[str, int]
    seconds: float


def try_period(trial: Trial, home: Path) -> Tried:
    """Send a period in ``home``, send it again, check it, and let the provider's own store judge.

    Raises InputError when the source cannot be used as it was named.
    """
    began = time.monotonic()
    key = secrets.token_hex(16)
    with environment(trial, home) as settings, Ledger(settings.ledger_url) as ledger:
        need_source(settings)
        _require_source(settings, trial.digest)
        migrate.upgrade(ledger, settings.environment)
        with SandboxProcess(home / "sandbox.db", SandboxSettings(api_key=key)) as provider:
            provider.control.script(*fault_rules(trial))
            return _Stage(trial, tried_out(trial, provider.url, key), ledger, provider).play(began)


def _require_source(settings: Settings, digest: Digest) -> None:
    try:
        with open_source(settings, digest) as source, source.snapshot():
            pass
    except SourceError as error:
        raise InputError(str(error)) from None


class _Stage:
    def __init__(self, trial: Trial, digest: Digest, ledger: Ledger, provider: SandboxProcess) -> None:
        self.trial, self.digest, self.ledger, self.provider = trial, digest, ledger, provider
        self.period = trial.period

    def play(self, began: float) -> Tried:
        outcome, runs, sent = self._run_until_settled()
        oracle = self.provider.oracle()
        accepted, hit = oracle.accepted_count(), oracle.faults_hit()
        self.provider.control.clear_faults()
        findings = [self._sent(outcome, runs, sent)]
        again = 0
        if self._ids():
            second = self._run()
            again = self._accepted_by(second)
            findings += [self._sent_nothing(second, again, oracle.accepted_count() - accepted)]
            findings += [*self._judged(), *findings_of(run_checks(self.digest, self.period))]
        summary = self._summary()
        return Tried(
            tuple(findings), summary.entries, {str(state): n for state, n in summary.states.items()}, sent,
            again, oracle.accepted_count(), runs + bool(self._ids()), hit, time.monotonic() - began,
        )  # fmt: skip

    def _run_until_settled(self) -> tuple[RunOutcome, int, int]:
        runs = sent = 0
        while True:
            runs += 1
            outcome = self._run()
            sent += self._accepted_by(outcome)
            if self.trial.faults == "none" or runs == MOST_RUNS:
                return outcome, runs, sent
            # Another run is for what the provider's failures left open; where nothing arrived there is none.
            if not self.provider.control.statistics()["arrivals"] or self._summary().is_settled:
                return outcome, runs, sent

    def _run(self) -> RunOutcome:
        with period_progress(self.ledger, self.digest, self.period):
            return run_period(self.digest, self.period, late_reason=_LATE, by="trial")

    def _ids(self) -> tuple[int, ...]:
        with self.ledger.read() as conn:
            return reads.manifest_ids(conn, self.digest.name, self.period.label)

    def _summary(self) -> Summary:
        with self.ledger.read() as conn:
            return reads.summarise(
                conn, reads.manifest_ids(conn, self.digest.name, self.period.label), sends=True
            )

    def _accepted_by(self, outcome: RunOutcome) -> int:
        with self.ledger.read() as conn:
            ids = reads.manifest_ids(conn, self.digest.name, self.period.label)
            return reads.accepted_by_run(conn, ids, outcome.run_id)

    def _sent(self, outcome: RunOutcome, runs: int, sent: int) -> Finding:
        summary = self._summary()
        if not outcome.succeeded:
            said = "; ".join(outcome.errors) or "an asset check failed in the run"
        elif not summary.is_settled:
            open_ones = {str(state): count for state, count in summary.states.items() if count}
            said = f"after {runs} runs not everybody is settled: {open_ones}"
        elif not sent:
            said = "no message was sent, so nothing was proved: choose a period with customers in the source"
        else:
            return Finding(
                "gate", "the_period_is_sent", Result.PASSED, f"sent {sent}, in the end everybody is settled"
            )
        return Finding("gate", "the_period_is_sent", Result.FAILED, said)

    def _sent_nothing(self, outcome: RunOutcome, again: int, arrived: int) -> Finding:
        holds = outcome.succeeded and again == 0 and arrived == 0
        said = f"sent {again} again; the provider accepted {arrived} more"
        if outcome.errors:
            said += f"; {'; '.join(outcome.errors)}"
        return _finding("materialising_again_sends_nothing", holds, said)

    def _judged(self) -> Sequence[Finding]:
        oracle = self.provider.oracle()
        found = judge(oracle, self.ledger, self.digest, self.period)
        keys = ", ".join(one.operation_key for one in list(oracle.duplicates())[:5])
        others = oracle.recipients_other_than_one()
        return (
            _finding("each_key_is_accepted_once", not found.duplicates,
                     f"{found.duplicates} keys were accepted more than once {keys}".strip()),
            _finding("ledger_and_provider_agree", not found.lost and not found.unrecorded,
                     f"{found.lost} lost, {found.unrecorded} accepted that the ledger does not call sent"),
            _finding("each_message_has_one_recipient", not others,
                     f"{others} messages had more or fewer"),
        )  # fmt: skip


def _finding(name: str, holds: bool, said: str) -> Finding:
    return Finding("gate", name, Result.PASSED if holds else Result.FAILED, said)
