"""What every test may use: see harness/ for how each is made."""

import os

# Before the imports below, since libraries read these once. No test may phone home, read the developer's
# instance, or depend on the developer's time zone.
os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
os.environ["TZ"] = "UTC"
os.environ.pop("DAGSTER_HOME", None)
# Plots are drawn to files; a machine without a screen has no other backend.
os.environ["MPLBACKEND"] = "Agg"

from collections.abc import Iterator

import pytest
import structlog

from digest_pipeline_tests.harness.fixtures import (
    nursery,
    open_desk,
    open_rim,
    sandbox,
    shared_sandbox,
)
from digest_pipeline_tests.harness.postgres import (
    ledger_url,
    postgres_server,
    postgres_url,
    sqlite_url,
)

__all__ = [
    "ledger_url",
    "nursery",
    "open_desk",
    "open_rim",
    "postgres_server",
    "postgres_url",
    "sandbox",
    "shared_sandbox",
    "sqlite_url",
]


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """No test hears less than it would alone because an earlier one, or a command it called, set a level."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
