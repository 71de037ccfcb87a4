"""Running a period through Dagster in this process: what the command line and the demo use.

Runs land in the same instance as those of the UI and the daemon, so they are seen there too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.defs.names import PARTITION_TAG, checks_job_name, job_name, period_tag
from digest_pipeline.periods import Period
from digest_pipeline.spec import Digest

INSTANCE_FILE = "dagster.yaml"
RUN_LIMITS = """\
concurrency:
  runs:
    max_concurrent_runs: 4
    tag_concurrency_limits:
      - key: dagster/partition
        value:
          applyLimitPerUniqueValue: true
        limit: 1
      - key: digest/period
        value:
          applyLimitPerUniqueValue: true
        limit: 1
run_monitoring:
  enabled: true
  start_timeout_seconds: 300
  max_runtime_seconds: 21600
run_retries:
  enabled: true
  max_retries: 2
  retry_on_asset_or_op_failure: false
telemetry:
  enabled: false
nux:
  enabled: false
"""
"""What every instance has that a command makes; dagster.yaml and deploy/dagster.yaml say why."""
EMBEDDED_INSTANCE = f"""\
# Dagster's own state, beside the embedded ledger. For more than one machine: deploy/dagster.yaml.
storage:
  sqlite:
    base_dir: {{folder}}
{RUN_LIMITS}"""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One asset check's result."""

    asset: str
    name: str
    passed: bool
    severity: str
    description: str

    @property
    def is_failure(self) -> bool:
        """Whether it fails a gate: a warning does not."""
        return not self.passed and self.severity == "ERROR"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run that ended. ``errors``: what failed, by step, without anything private."""

    run_id: str
    succeeded: bool
    checks: tuple[CheckOutcome, ...]
    errors: tuple[str, ...]


def use_instance(home: Path) -> Path:
    """Choose the Dagster instance of this process and return its folder.

    DAGSTER_HOME where it is set; else the folder we stand in if it has a dagster.yaml; else one beside
    the embedded ledger, made on first use.
    """
    if chosen := os.environ.get("DAGSTER_HOME"):
        return Path(chosen)
    here = Path.cwd()
    folder = here if (here / INSTANCE_FILE).exists() else home / "dagster"
    if folder != here:
        make_instance(folder)
    os.environ["DAGSTER_HOME"] = str(folder)
    return folder


def make_instance(folder: Path) -> None:
    """Make a folder an embedded instance of Dagster, unless it is an instance already."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / INSTANCE_FILE
    if not file.exists():
        file.write_text(EMBEDDED_INSTANCE.format(folder=folder), encoding="utf-8")


def run_period(digest: Digest, period: Period, *, late_reason: str = "", by: str = "") -> RunOutcome:
    """Materialise every asset of a period and run its checks; returns when that has ended."""
    config: dict[str, Any] = {"loggers": _quiet()}
    if late_reason:
        settings = {"allow_late": True, "reason": late_reason, "by": by}
        plan = {f"{digest.name}__plan_delivery": {"config": settings}}
        config["ops"] = {f"{digest.name}__delivery_outcomes": {"ops": plan}}
    return _execute(
        digest,
        job_name(digest),
        run_config=config,
        partition_key=period.partition_key,
        tags=period_tag(digest, period),
    )


def run_checks(digest: Digest, period: Period) -> RunOutcome:
    """Run every asset check of a period; materialises and sends nothing."""
    return _execute(
        digest,
        checks_job_name(digest),
        run_config={"loggers": _quiet()},
        tags={PARTITION_TAG: period.partition_key},
    )


def _execute(digest: Digest, job: str, **how: Any) -> RunOutcome:
    definitions = build_definitions({digest.name: digest})
    with _instance() as instance:
        result = definitions.resolve_job_def(job).execute_in_process(
            instance=instance, raise_on_error=False, **how
        )
    failed = (event for event in result.all_events if event.is_step_failure)
    checks = (_check(evaluation) for evaluation in result.get_asset_check_evaluations())
    return RunOutcome(result.run_id, result.success, tuple(checks), tuple(_reason(event) for event in failed))


def _check(evaluation: dg.AssetCheckEvaluation) -> CheckOutcome:
    return CheckOutcome(
        asset=evaluation.asset_key.to_user_string(),
        name=evaluation.check_name,
        passed=evaluation.passed,
        severity=evaluation.severity.value,
        description=evaluation.description or "",
    )


def _reason(event: dg.DagsterEvent) -> str:
    data = event.step_failure_data
    error = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    told = data.user_failure_data.description if data.user_failure_data else None
    # Only our own errors promise that their text holds nothing private.
    text = told or (error.message.strip() if error is not None and _is_ours(error.cls_name) else "")
    name = error.cls_name if error is not None else "failure"
    return f"{event.step_key}: {text or name}"


def _is_ours(class_name: str | None) -> bool:
    from digest_pipeline import errors

    return class_name is not None and hasattr(errors, class_name)


def _quiet() -> dict[str, Any]:
    return {"console": {"config": {"log_level": "CRITICAL"}}}


@contextmanager
def _instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.get() as instance:
        yield instance
