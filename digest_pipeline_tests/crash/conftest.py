from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.harness.delivering import Desk, frozen_desk
from digest_pipeline_tests.harness.sandbox import as_new, running_sandbox


@pytest.fixture(scope="session")
def shared_sandbox(tmp_path_factory) -> Iterator[SandboxProcess]:
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as process:
        yield process


@pytest.fixture
def sandbox(shared_sandbox) -> SandboxProcess:
    """A real provider process: empty store, no faults, idempotency keys that replay."""
    return as_new(shared_sandbox)


@pytest.fixture
def open_desk(tmp_path, ledger_url, sandbox) -> Iterator[Callable[..., Desk]]:
    """Freeze a small period and get everything that sends it, on each engine in turn."""
    with ExitStack() as stack:

        def opened(customers: int = 5, **changes: Any) -> Desk:
            return stack.enter_context(frozen_desk(tmp_path, ledger_url, sandbox, customers, **changes))

        yield opened
