from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.harness.rim import Rim, rim_at
from digest_pipeline_tests.harness.sandbox import as_new, running_sandbox


def pytest_configure(config: pytest.Config) -> None:
    # Dagster 1.13 still asks pydantic for the fields of a resource by their old name. Only Dagster's.
    config.addinivalue_line("filterwarnings", "ignore:The `__fields__` attribute:DeprecationWarning")


@pytest.fixture(scope="session")
def shared_sandbox(tmp_path_factory) -> Iterator[SandboxProcess]:
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as process:
        yield process


@pytest.fixture
def sandbox(shared_sandbox) -> SandboxProcess:
    """A real provider process: empty store, no faults, idempotency keys that replay."""
    return as_new(shared_sandbox)


@pytest.fixture
def open_rim(tmp_path, ledger_url, sandbox, monkeypatch) -> Iterator[Callable[..., Rim]]:
    """Make an installation with a small source, on each engine in turn."""
    with ExitStack() as stack:

        def opened(**options: Any) -> Rim:
            return stack.enter_context(rim_at(tmp_path, ledger_url, sandbox, monkeypatch, **options))

        yield opened
