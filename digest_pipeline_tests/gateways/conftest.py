"""Providers for the tests of gateways: one process of each kind for the whole session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from digest_pipeline_tests.gateways.stands import STANDS, Stand


@pytest.fixture(scope="session")
def open_stands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stand]]:
    """Open the stand of a kind when it is first asked for."""
    opened: dict[str, Stand] = {}
    with ExitStack() as stack:

        def stand_of(kind: str) -> Stand:
            if kind not in opened:
                opened[kind] = stack.enter_context(STANDS[kind].open(tmp_path_factory.mktemp(kind)))
            return opened[kind]

        yield stand_of


@pytest.fixture
def stand(request: pytest.FixtureRequest, open_stands: Callable[[str], Stand]) -> Stand:
    """The stand that the parameter names, as new."""
    found = open_stands(request.param)
    found.reset()
    return found
