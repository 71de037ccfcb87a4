"""Fixtures that more than one folder of tests asks for: a provider, child processes, a period, an installation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from digest_pipeline.lab.nursery import Nursery
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.harness.delivering import Desk, frozen_desk
from digest_pipeline_tests.harness.sandbox import as_new, running_sandbox

if TYPE_CHECKING:
    from digest_pipeline_tests.harness.rim import Rim


@pytest.fixture(scope="session")
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """The process behind ``sandbox``."""
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as process:
        yield process


@pytest.fixture
def sandbox(shared_sandbox: SandboxProcess) -> SandboxProcess:
    """A real provider process: empty store, no faults, idempotency keys that replay."""
    return as_new(shared_sandbox)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where child processes come from."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture
def open_desk(tmp_path: Path, ledger_url: str, sandbox: SandboxProcess) -> Iterator[Callable[..., Desk]]:
    """Freeze a small period and get everything that sends it, on each engine in turn."""
    with ExitStack() as stack:

        def opened(customers: int = 5, **changes: Any) -> Desk:
            return stack.enter_context(frozen_desk(tmp_path, ledger_url, sandbox, customers, **changes))

        yield opened


@pytest.fixture
def open_rim(
    tmp_path: Path, ledger_url: str, sandbox: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Rim]]:
    """Make an installation with a small source, on each engine in turn."""
    from digest_pipeline_tests.harness.rim import rim_at  # Dagster: only where it is asked for

    with ExitStack() as stack:

        def opened(**options: Any) -> Rim:
            return stack.enter_context(rim_at(tmp_path, ledger_url, sandbox, monkeypatch, **options))

        yield opened
