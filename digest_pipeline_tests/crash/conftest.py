from collections.abc import Iterator

import pytest

from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.harness.nursery import Nursery
from digest_pipeline_tests.harness.sandbox import as_new, running_sandbox


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
