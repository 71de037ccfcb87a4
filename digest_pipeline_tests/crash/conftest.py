from collections.abc import Iterator

import pytest

from digest_pipeline.lab.crash.provider import SandboxProvider
from digest_pipeline.lab.crash.stage import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory) -> Iterator[Stage]:
    """What cells play on: real processes, a provider that may be killed, databases of one's own."""
    with Stage(tmp_path_factory.mktemp("stage"), SandboxProvider) as stage:
        yield stage
