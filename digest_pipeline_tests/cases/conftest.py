from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from digest_pipeline_tests.cases.stage import desk_for
from digest_pipeline_tests.harness.delivering import Desk


def pytest_configure(config: pytest.Config) -> None:
    # Dagster 1.13 still asks pydantic for the fields of a resource by their old name. Only Dagster's.
    config.addinivalue_line("filterwarnings", "ignore:The `__fields__` attribute:DeprecationWarning")


@pytest.fixture
def open_desk_for(tmp_path, ledger_url, sandbox) -> Iterator[Callable[..., Desk]]:
    """Freeze and compose a period for customers of one's own making."""
    with ExitStack() as stack:

        def opened(*customers: dict[str, Any], **changes: Any) -> Desk:
            return stack.enter_context(desk_for(tmp_path, ledger_url, sandbox, customers, **changes))

        yield opened
