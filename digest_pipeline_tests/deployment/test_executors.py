"""Where steps run: the choice is explicit, and a dangerous one is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from digest_pipeline.defs.executors import BACKEND_VARIABLE, BROKER_VARIABLE, executor_of
from digest_pipeline.errors import InputError
from digest_pipeline.settings import Settings


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    for name in ("DIGEST_EXECUTOR", "DIGEST_SENDING", "DIGEST_REPORTS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DIGEST_HOME", str(tmp_path))
    monkeypatch.setenv("DIGEST_LEDGER_URL", "postgresql+psycopg://digest@db.test/ledger")
    return Settings.from_environment()


def test_steps_run_in_the_runs_own_process_unless_another_place_is_chosen(settings: Settings) -> None:
    assert settings.executor == "in_process"
    assert executor_of(settings) is dg.in_process_executor


def test_an_executor_that_does_not_exist_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIGEST_EXECUTOR", "kubernetes")
    with pytest.raises(InputError, match="DIGEST_EXECUTOR is in_process or celery, not 'kubernetes'"):
        Settings.from_environment()


def test_celery_takes_its_servers_from_the_environment_and_nothing_from_a_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = executor_of(replace(settings, executor="celery"))
    assert chosen.name == "celery"

    @dg.job(executor_def=chosen)
    def nothing() -> None:
        pass

    for name in (BROKER_VARIABLE, BACKEND_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(dg.DagsterInvalidConfigError, match=BROKER_VARIABLE):
        dg.validate_run_config(nothing, {})
    monkeypatch.setenv(BROKER_VARIABLE, "redis://broker.test/0")
    monkeypatch.setenv(BACKEND_VARIABLE, "redis://broker.test/1")
    assert dg.validate_run_config(nothing, {})["execution"]["celery"]["broker"] == "redis://broker.test/0"


def test_celery_with_a_ledger_that_each_machine_would_have_of_its_own_is_refused(settings: Settings) -> None:
    alone = replace(settings, executor="celery", ledger_url="sqlite:///ledger.db")
    with pytest.raises(InputError, match="set DIGEST_LEDGER_URL to one PostgreSQL database on all of them"):
        executor_of(alone)
