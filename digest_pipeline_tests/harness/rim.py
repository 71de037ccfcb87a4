"""A whole installation for tests of the Dagster rim: specifications, source, ledger, sandbox, instance.

with rim_at(tmp_path, ledger_url, sandbox, monkeypatch) as rim:
    done = rim.materialise("2025-W10")
    assert done.success
    assert rim.shown("delivery_outcomes")["sent_now"] == 5
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from sqlalchemy import Row, select

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.defs.names import checks_job_name, job_name, period_tag
from digest_pipeline.keys import operation_key
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.ledger import reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.reads import Summary
from digest_pipeline.ledger.schema import attempt, metadata, operator_action
from digest_pipeline.periods import Period
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest
from digest_pipeline_tests.harness.ledgers import (
    ENVIRONMENT,
    LABEL,
    customer,
    migrated,
    run_ledger_sql,
    spec_fields,
    write_customers,
)
from digest_pipeline_tests.harness.sandbox import API_KEY

# Long enough for the slowest machine, short enough that a lease can be waited for.
QUICK: Mapping[str, Any] = {
    "gateway": {"settings": {"api_key": {"env": "DIGEST_SANDBOX_API_KEY"}}},
    "sending": {
        "lanes": 2,
        "concurrency": 8,
        "timeout_seconds": 5,
        "lease_seconds": 60,
        "in_run_wait_seconds": 5,
        "run_limit_seconds": 60,
    },
    "retry": {"base_seconds": 0.05, "cap_seconds": 0.1, "max_attempts": 3},
    "cleanup": {"delay_hours": 0},
}
_SEALED = ("content", "delivery", "attempt", "manifest_exclusion", "manifest_entry", "manifest")
"""What a planted violation may touch, children first."""


def write_spec(folder: Path, **overrides: Any) -> Path:
    """Write the tiny digest, quick to send and to retry, as a specification file; overrides merge."""
    fields = spec_fields(folder, **_merged(dict(QUICK), overrides))
    path = folder / f"{fields['name']}.yaml"
    path.write_text(yaml.safe_dump(fields, allow_unicode=True), encoding="utf-8")
    return path


@dataclass
class Rim:
    """One installation, with what Dagster and the ledger say about it."""

    folder: Path
    digest: Digest
    ledger: Ledger
    sandbox: SandboxProcess
    instance: dg.DagsterInstance

    @property
    def definitions(self) -> dg.Definitions:
        return build_definitions({self.digest.name: self.digest})

    def period(self, label: str = LABEL) -> Period:
        return self.digest.period(label)

    def key_of(self, number: int, label: str = LABEL) -> str:
        """Return the operation key of the n-th customer."""
        return operation_key(self.digest.name, label, "default", f"customer-{number:03d}")

    def materialise(self, label: str = LABEL, **late: Any) -> dg.ExecuteInProcessResult:
        """Run the whole job of one period; ``late`` is the delivery asset's run configuration."""
        name = self.digest.name
        config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        if late:
            plan = {f"{name}__plan_delivery": {"config": late}}
            config["ops"] = {f"{name}__delivery_outcomes": {"ops": plan}}
        return self.definitions.resolve_job_def(job_name(self.digest)).execute_in_process(
            instance=self.instance,
            run_config=config,
            partition_key=self.period(label).partition_key,
            tags=period_tag(self.digest, self.period(label)),
            raise_on_error=False,
        )

    def check(self, label: str = LABEL) -> dict[str, dg.AssetCheckEvaluation]:
        """Run every check of one period; return the evaluations by name."""
        done = self.definitions.resolve_job_def(checks_job_name(self.digest)).execute_in_process(
            instance=self.instance,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            tags={"dagster/partition": self.period(label).partition_key},
            raise_on_error=False,
        )
        return {found.check_name: found for found in done.get_asset_check_evaluations()}

    def shown(self, asset: str, label: str = LABEL) -> dict[str, Any]:
        """Return the metadata of an asset's newest materialisation of a period, as plain values."""
        key = dg.AssetKey([self.digest.name, asset])
        partition = self.period(label).partition_key
        records = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition]), limit=1
        ).records
        if not records:
            raise LookupError(f"{asset} was never materialised for {label}")
        found = records[0].asset_materialization
        assert found is not None
        return {name: value.value for name, value in found.metadata.items()}

    def is_materialised(self, asset: str, label: str = LABEL) -> bool:
        """Whether Dagster has any materialisation of an asset's period."""
        key = dg.AssetKey([self.digest.name, asset])
        return self.period(label).partition_key in self.instance.get_materialized_partitions(key)

    def ids(self, label: str = LABEL) -> tuple[int, ...]:
        with self.ledger.read() as conn:
            return reads.manifest_ids(conn, self.digest.name, label)

    def summary(self, label: str = LABEL) -> Summary:
        with self.ledger.read() as conn:
            return reads.summarise(conn, reads.manifest_ids(conn, self.digest.name, label))

    def states(self, label: str = LABEL) -> dict[str, int]:
        """Return how many deliveries are in each state that occurs."""
        return {state: count for state, count in self.summary(label).states.items() if count}

    def attempts(self) -> list[Row[Any]]:
        with self.ledger.read() as conn:
            return list(conn.execute(select(attempt).order_by(attempt.c.token)))

    def actions(self) -> list[Row[Any]]:
        """Return the audit trail."""
        with self.ledger.read() as conn:
            return list(conn.execute(select(operator_action).order_by(operator_action.c.id)))

    def sql(self, statement: str, **parameters: Any) -> Sequence[Row[Any]]:
        return run_ledger_sql(self.ledger, statement, **parameters)

    def accepted(self) -> dict[str, int]:
        """Return how often the provider accepted each key."""
        return dict(Counter(one.operation_key for one in self.sandbox.oracle().acceptances()))

    def close_windows(self) -> None:
        """Let every delivery window be over."""
        self.sql("UPDATE manifest SET window_closes_at = 1, window_opens_at = 0")

    def end_leases(self) -> None:
        """Let every lease be over, as if enough time had passed since the claims."""
        self.sql("UPDATE delivery SET lease_ends = 1 WHERE lease_ends IS NOT NULL")

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Put the ledger's rows back at the end of the block, whatever was planted in it."""
        tables = [metadata.tables[name] for name in _SEALED]
        with self.ledger.read() as conn:
            before = {table.name: [dict(r._mapping) for r in conn.execute(select(table))] for table in tables}
        try:
            yield
        finally:
            with self.ledger.write() as conn:
                for table in tables:
                    conn.execute(table.delete())
                for table in reversed(tables):
                    if before[table.name]:
                        conn.execute(table.insert(), before[table.name])


def failures(done: dg.ExecuteInProcessResult | dg.JobExecutionResult) -> dict[str, str]:
    """Return what went wrong in a run, by step, with every cause: empty for a run that succeeded."""
    found: dict[str, str] = {}
    for event in done.all_events:
        if event.is_step_failure:
            error = event.step_failure_data.error
            found[str(event.step_key)] = error.to_string() if error else "failed"
            print(found[str(event.step_key)])  # whole, where an assertion's difference is cut
    return found


@contextmanager
def rim_at(
    folder: Path,
    url: str,
    sandbox: SandboxProcess,
    patch: pytest.MonkeyPatch,
    customers: int = 5,
    days: Sequence[str] = ("2025-03-05",),
    **overrides: Any,
) -> Iterator[Rim]:
    """Make a migrated installation in ``folder`` whose customers have an order on each of ``days``."""
    specs = folder / "specs"
    specs.mkdir(exist_ok=True)
    write_spec(specs, source={"env": "DIGEST_SOURCE_URL", "default": ...}, **overrides)
    write_customers(folder, (customer(n, orders=tuple(days)) for n in range(1, customers + 1)))
    environment = {
        "DIGEST_HOME": str(folder / "home"),
        "DIGEST_LEDGER_URL": url,
        "DIGEST_SPECS": str(specs),
        "DIGEST_ENVIRONMENT": ENVIRONMENT,
        "DIGEST_SOURCE_URL": f"sqlite:///{folder / 'source.db'}",
        "DIGEST_SANDBOX_URL": sandbox.url,
        "DIGEST_SANDBOX_API_KEY": API_KEY,
    }
    for name, value in environment.items():
        patch.setenv(name, value)
    digest = next(iter(Settings.from_environment().digests().values()))
    with migrated(url) as ledger, dg.DagsterInstance.ephemeral() as instance:
        yield Rim(folder, digest, ledger, sandbox, instance)


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(value, Mapping) and isinstance(old, dict) else value
    return merged
