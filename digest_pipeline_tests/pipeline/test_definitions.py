import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import combinations, pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from sqlalchemy import inspect

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.defs.checks import CHECKS
from digest_pipeline.defs.names import ASSETS
from digest_pipeline.defs.partitions import partitions_of
from digest_pipeline.errors import InputError, PeriodError
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import metadata
from digest_pipeline.periods import Cadence, parse_period
from digest_pipeline.settings import PACKAGED_SPECS, Settings
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import load_folder
from digest_pipeline_tests.harness.ledgers import customer, run_ledger_sql, tiny_spec, write_customers
from digest_pipeline_tests.harness.rim import write_spec
from digest_pipeline_tests.harness.sandbox import API_KEY

ROOT = Path(__file__).parents[2]


@pytest.fixture
def two_digests(tmp_path) -> dict[str, Digest]:
    write_spec(tmp_path, name="weekly_one")
    write_spec(tmp_path, name="daily_one", cadence="daily", first_period="2025-01-01")
    return load_folder(tmp_path)


def test_each_specification_becomes_a_group_with_its_job_schedule_and_checks(two_digests):
    definitions = build_definitions(two_digests)
    graph = definitions.resolve_asset_graph()
    groups = Counter(node.group_name for node in graph.asset_nodes)
    assert groups == {"weekly_one": len(ASSETS), "daily_one": len(ASSETS)}
    jobs = {job.name for job in definitions.resolve_all_job_defs()}
    assert jobs >= {"weekly_one_weekly", "daily_one_daily", "weekly_one_checks", "daily_one_checks"}
    schedules = {one.name: one for one in definitions.schedules or ()}
    assert set(schedules) == {"weekly_one_weekly_schedule", "daily_one_daily_schedule"}
    names = {check.name for check in CHECKS} | {"provider_lists_what_it_accepted"}
    assert {key.name for key in graph.asset_check_keys} == names
    assert len(graph.asset_check_keys) == 2 * len(names)


def test_no_two_things_of_a_code_location_share_a_name(two_digests):
    definitions = build_definitions(two_digests)
    ops = [
        node.definition.name
        for digest in two_digests.values()
        for node in definitions.resolve_job_def(f"{digest.name}_{digest.cadence}").nodes
    ]
    assert len(ops) == len(set(ops))
    for names in (
        [job.name for job in definitions.resolve_all_job_defs()],
        [key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()],
        [str(key) for key in definitions.resolve_asset_graph().asset_check_keys],
    ):
        assert len(names) == len(set(names))


def test_every_asset_and_check_says_what_it_is_about(two_digests):
    graph = build_definitions(two_digests).resolve_asset_graph()
    assert all(graph.get(key).description for key in graph.get_all_asset_keys())
    described = {key: graph.get_check_spec(key).description for key in graph.asset_check_keys}
    assert all(described.values())
    blocking = {key.name for key in graph.asset_check_keys if graph.get_check_spec(key).blocking}
    assert blocking == {
        "manifest_is_frozen",
        "no_duplicate_sends",
        "provider_lists_what_it_accepted",
        "cleanup_only_after_definitive_send",
    }


def test_the_assets_follow_each_other_in_order(two_digests):
    graph = build_definitions(two_digests).resolve_asset_graph()
    keys = [dg.AssetKey(["weekly_one", name]) for name in ASSETS]
    for before, after in pairwise(keys):
        assert graph.get(after).parent_keys == {before}


def test_the_packaged_specifications_make_definitions(monkeypatch):
    monkeypatch.setenv("DIGEST_SPECS", str(PACKAGED_SPECS))
    monkeypatch.delenv("DIGEST_SOURCE_URL", raising=False)
    definitions = build_definitions(Settings.from_environment().digests())
    dg.Definitions.validate_loadable(definitions)


def test_dagster_validates_the_workspace_file_without_a_word_of_complaint(tmp_path):
    """Loading the code location needs no database, no source and no secret."""
    (tmp_path / "workspace.yaml").write_bytes((ROOT / "workspace.yaml").read_bytes())
    (tmp_path / "dagster.yaml").touch()
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME", "TZ") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=tmp_path,
        env={**kept, "DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    # The one that Dagster prints about its own command, whatever is validated.
    warnings = [line for line in said.splitlines() if "Warning" in line or "WARNING" in line]
    assert [line for line in warnings if "definitions_validate_command" not in line] == []
    assert not (tmp_path / ".digest").exists(), "loading definitions wrote something"


@contextmanager
def instance_from(config: Path, home: Path, patch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    home.mkdir()
    shutil.copy(config, home / "dagster.yaml")
    patch.setenv("DAGSTER_HOME", str(home))
    patch.chdir(home)
    with dg.DagsterInstance.get() as instance:
        yield instance


def limits(instance: dg.DagsterInstance) -> dict[str, object]:
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    return {one["key"]: one["limit"] for one in queue.tag_concurrency_limits}


def test_the_embedded_instance_keeps_everything_in_its_own_folder(tmp_path, monkeypatch):
    with instance_from(ROOT / "dagster.yaml", tmp_path / "home", monkeypatch) as instance:
        assert limits(instance).items() >= {("digest/period", 1)}
        assert instance.run_retries_enabled
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert not instance.telemetry_enabled
        assert instance.get_runs_count() == 0
    assert (tmp_path / "home" / ".dagster_state").is_dir()


@contextmanager
def deployed_instance(home: Path, url: str, patch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    patch.setenv("DAGSTER_POSTGRES_URL", url.replace("postgresql+psycopg:", "postgresql:"))
    patch.setenv("DAGSTER_COMPUTE_LOGS", str(home.with_name("logs")))
    with instance_from(ROOT / "deploy" / "dagster.yaml", home, patch) as instance:
        yield instance


@pytest.mark.postgresql
def test_the_deployed_instance_opens_postgresql_and_runs_one_run_of_a_period_at_a_time(
    tmp_path, monkeypatch, postgres_url
):
    with deployed_instance(tmp_path / "home", postgres_url, monkeypatch) as instance:
        assert limits(instance).items() >= {
            ("digest/period", 1),
            ("dagster/partition", 1),
            ("dagster/backfill", 2),
        }
        assert type(instance.run_storage).__name__ == "PostgresRunStorage"
        assert instance.get_runs_count() == 0
        assert not instance.telemetry_enabled


@pytest.mark.postgresql
def test_every_setting_of_the_deployed_instance_is_one_that_dagster_takes(
    tmp_path, monkeypatch, postgres_url
):
    """As Dagster has understood them, not as the file says them."""
    with deployed_instance(tmp_path / "home", postgres_url, monkeypatch) as instance:
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_start_timeout_seconds == 300
        assert instance.run_monitoring_max_resume_run_attempts == 0
        assert (instance.run_retries_enabled, instance.run_retries_max_retries) == (True, 2)
        assert not instance.run_retries_retry_on_asset_or_op_failure
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == 4
        per_value = {one["key"] for one in queue.tag_concurrency_limits if isinstance(one.get("value"), dict)}
        assert per_value == {"digest/period", "dagster/partition"}
        pools = instance.get_concurrency_config().pool_config
        assert (str(pools.pool_granularity), pools.default_pool_limit) == ("PoolGranularity.RUN", 1)
        assert instance.nux_enabled is False
        assert type(instance.compute_log_manager).__name__ == "LocalComputeLogManager"
        kept = instance.get_tick_retention_settings(InstigatorType.SENSOR)
        days = {status.value: number for status, number in kept.items()}
        assert days.items() >= {("SKIPPED", 7), ("FAILURE", 30), ("SUCCESS", 90)}
        assert 90 in instance.get_tick_retention_settings(InstigatorType.SCHEDULE).values()


def test_runs_of_the_jobs_start_again_as_a_whole_after_a_crash(two_digests):
    """A run of assets from the UI carries no tag: Dagster then goes on from failure. Its retries have no default."""
    definitions = build_definitions(two_digests)
    for name in ("weekly_one_weekly", "daily_one_daily"):
        assert definitions.resolve_job_def(name).tags["dagster/retry_strategy"] == "ALL_STEPS"


@pytest.mark.postgresql
def test_the_ledger_is_refused_a_schema_of_dagsters_before_anything_is_written(
    tmp_path, monkeypatch, postgres_url
):
    with deployed_instance(tmp_path / "home", postgres_url, monkeypatch) as instance:
        instance.get_runs_count()
    refused(postgres_url)


def test_the_ledger_is_refused_a_file_of_dagsters_before_anything_is_written(tmp_path, monkeypatch):
    with instance_from(ROOT / "dagster.yaml", tmp_path / "home", monkeypatch) as instance:
        instance.get_runs_count()
    files = list((tmp_path / "home").rglob("runs.db"))
    assert files
    for file in files:
        refused(f"sqlite:///{file}")


def refused(url: str) -> None:
    with Ledger(url) as ledger:
        before = inspect(ledger.engine).get_table_names()
        with pytest.raises(InputError, match="holds Dagster's own tables"):
            migrate.upgrade(ledger, "test")
        assert inspect(ledger.engine).get_table_names() == before


def test_the_ledger_is_refused_a_schema_with_tables_of_others_by_its_names(ledger_url):
    with Ledger(ledger_url) as ledger:
        run_ledger_sql(ledger, "CREATE TABLE template (id INTEGER)")
        with pytest.raises(InputError, match="tables the ledger would need: template"):
            migrate.upgrade(ledger, "test")
        assert inspect(ledger.engine).get_table_names() == ["template"]


@pytest.mark.parametrize("name", sorted(migrate._DAGSTERS))
def test_one_table_by_a_name_of_dagsters_is_somebody_elses(ledger_url, name):
    with Ledger(ledger_url) as ledger:
        run_ledger_sql(ledger, f"CREATE TABLE {name} (id INTEGER)")
        migrate.upgrade(ledger, "test")
        migrate.require_current(ledger)
        assert {name, *metadata.tables} <= set(inspect(ledger.engine).get_table_names())


@pytest.mark.parametrize("names", list(combinations(sorted(migrate._DAGSTERS), 2)), ids="-".join)
def test_two_of_them_are_dagsters(ledger_url, names):
    with Ledger(ledger_url) as ledger:
        for name in names:
            run_ledger_sql(ledger, f"CREATE TABLE {name} (id INTEGER)")
    refused(ledger_url)


def in_the_repository(tmp_path: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Dagster's in the repository's folder, its state in another."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIGEST_", "DAGSTER_"))}
    (tmp_path / "dagster.yaml").write_text(
        "telemetry: {enabled: false}\nnux: {enabled: false}\n", encoding="utf-8"
    )
    return subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:]],
        cwd=ROOT,
        env=kept
        | {"DAGSTER_HOME": str(tmp_path), "DIGEST_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
        | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", [("check", "defs"), ("check", "yaml"), ("list", "defs", "--json")])
def test_dg_reads_the_repository_without_a_warning(tmp_path, command):
    done = in_the_repository(tmp_path, "dg", *command)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "warning" not in said.lower()
    if command[0] == "list":
        keys = {one["asset_key"] for one in json.loads(done.stdout)["assets"]}
        assert keys == {f"customer_digest/{name}" for name in ASSETS}


@pytest.mark.slow
def test_dg_launches_a_partition_and_launched_again_it_sends_nothing(tmp_path, sandbox):
    specs = tmp_path / "specs"  # not beside dagster.yaml, which is none
    specs.mkdir()
    source = {"env": "DIGEST_SOURCE_URL", "default": ...}
    write_spec(specs, source=source, late={"allow": True, "reason": "a test of dg"})
    write_customers(tmp_path, (customer(number) for number in range(1, 5)))
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger(ledger) as opened:
        migrate.upgrade(opened, "local")
    for _ in range(2):
        done = in_the_repository(
            tmp_path,
            *("dg", "launch", "--assets", 'key:"tiny_digest/*"', "--partition", "2025-W10-1"),
            DIGEST_SPECS=str(specs),
            DIGEST_LEDGER_URL=ledger,
            DIGEST_SOURCE_URL=f"sqlite:///{tmp_path / 'source.db'}",
            DIGEST_SANDBOX_URL=sandbox.url,
            DIGEST_SANDBOX_API_KEY=API_KEY,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert sandbox.oracle().accepted_count() == 4
    assert list(sandbox.oracle().duplicates()) == []


# What is Dagster's own, in a package of its own: https://errors.pydantic.dev, `__fields__` of a resource.
THEIRS = ("dagster_shared/dagster_model/pydantic_compat_layer.py",)


def test_no_deprecated_or_unfinished_api_of_dagsters_is_used():
    """Every warning is shown, whoever caused it: deprecated, superseded, beta and preview ones among them."""
    code = (
        "import dagster as dg\n"
        "from digest_pipeline.definitions import defs\n"
        "import digest_pipeline.defs.component, digest_pipeline.defs.postgres_instance\n"
        "dg.Definitions.validate_loadable(defs)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if "Warning: " in line or "Deprecated" in line]
    assert [line for line in warned if not any(place in line for place in THEIRS)] == []


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "UTC"])
def test_every_weekly_partition_is_one_iso_week_of_seven_local_days(tmp_path, zone):
    """PER-09: Dagster's own default is Sunday, whatever the start date says."""
    digest = tiny_spec(tmp_path, first_period="2019-W52", time_zone=zone)
    partitions = partitions_of(digest)
    keys = partitions.get_partition_keys(current_time=datetime(2027, 1, 31, tzinfo=UTC))
    for key in keys:
        window = partitions.time_window_for_partition_key(key)
        first = window.start.astimezone(ZoneInfo(zone))
        year, week, weekday = first.isocalendar()
        assert key == f"{year:04d}-W{week:02d}-{weekday}"
        assert (weekday, first.hour, first.minute) == (1, 0, 0)
        local_days = window.end.astimezone(ZoneInfo(zone)).date() - first.date()
        assert local_days == timedelta(days=7)
        period = parse_period(key, Cadence.WEEKLY, zone)
        assert period.partition_key == key
        assert (period.start, period.end) == (window.start.astimezone(UTC), window.end.astimezone(UTC))
    assert {"2020-W53-1", "2026-W53-1"} <= set(keys)
    assert "2025-W53-1" not in keys
    assert keys == sorted(keys)
    assert len(keys) == (date(2027, 1, 25) - date(2019, 12, 23)).days / 7


def test_every_daily_partition_is_one_local_day_of_23_to_25_hours(tmp_path):
    """PER-11."""
    zone = "Australia/Lord_Howe"
    digest = tiny_spec(tmp_path, cadence="daily", first_period="2025-12-30", time_zone=zone)
    partitions = partitions_of(digest)
    keys = partitions.get_partition_keys(current_time=datetime(2027, 1, 2, tzinfo=UTC))
    assert keys[0] == "2025-12-30"
    assert keys[-1] == "2027-01-01"
    lengths: Counter[float] = Counter()
    for key in keys:
        window = partitions.time_window_for_partition_key(key)
        period = parse_period(key, Cadence.DAILY, zone)
        assert (period.start, period.end) == (window.start.astimezone(UTC), window.end.astimezone(UTC))
        lengths[(period.end - period.start).total_seconds() / 3600] += 1
    assert lengths == {24.0: len(keys) - 2, 23.5: 1, 24.5: 1}


@pytest.mark.parametrize(
    ("last", "keys"),
    [
        ("2020-W53", ["2020-W51-1", "2020-W52-1", "2020-W53-1"]),
        ("2021-W01", ["2020-W51-1", "2020-W52-1", "2020-W53-1", "2021-W01-1"]),
        ("2020-W51", ["2020-W51-1"]),
    ],
)
def test_a_digest_that_ends_has_its_last_period_and_none_after_it(tmp_path, last, keys):
    digest = tiny_spec(tmp_path, first_period="2020-W51", last_period=last)
    assert partitions_of(digest).get_partition_keys() == keys
    assert [period.partition_key for period in digest.ended_periods()] == keys


def test_a_daily_digest_that_ends_has_its_last_day(tmp_path):
    digest = tiny_spec(tmp_path, cadence="daily", first_period="2024-02-28", last_period="2024-03-01")
    assert partitions_of(digest).get_partition_keys() == ["2024-02-28", "2024-02-29", "2024-03-01"]


def test_a_period_that_still_runs_is_no_partition_and_is_refused(tmp_path):
    """PER-07."""
    digest = tiny_spec(tmp_path)
    now = datetime.now(UTC)
    running = parse_period(now.date().isoformat(), digest.cadence, digest.time_zone)
    assert running.partition_key not in partitions_of(digest).get_partition_keys(current_time=now)
    with pytest.raises(PeriodError, match="has not ended"):
        digest.period(running.partition_key, now)
