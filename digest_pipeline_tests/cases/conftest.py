from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from digest_pipeline.lab.nursery import Nursery
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.cases.stage import desk_for
from digest_pipeline_tests.harness.delivering import Desk, frozen_desk
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


@pytest.fixture(scope="session")
def nursery(tmp_path_factory) -> Iterator[Nursery]:
    """Where child processes come from."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture
def open_desk(tmp_path, ledger_url, sandbox) -> Iterator[Callable[..., Desk]]:
    """Freeze a small period and get everything that sends it, on each engine in turn."""
    with ExitStack() as stack:

        def opened(customers: int = 5, **changes: Any) -> Desk:
            return stack.enter_context(frozen_desk(tmp_path, ledger_url, sandbox, customers, **changes))

        yield opened


@pytest.fixture
def open_desk_for(tmp_path, ledger_url, sandbox) -> Iterator[Callable[..., Desk]]:
    """The same for customers of one's own making."""
    with ExitStack() as stack:

        def opened(*customers: dict[str, Any], **changes: Any) -> Desk:
            return stack.enter_context(desk_for(tmp_path, ledger_url, sandbox, customers, **changes))

        yield opened


@pytest.fixture
def open_rim(tmp_path, ledger_url, sandbox, monkeypatch) -> Iterator[Callable[..., Rim]]:
    """Make an installation with a small source, on each engine in turn."""
    with ExitStack() as stack:

        def opened(**options: Any) -> Rim:
            return stack.enter_context(rim_at(tmp_path, ledger_url, sandbox, monkeypatch, **options))

        yield opened
