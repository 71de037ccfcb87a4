"""One site for all tests of this folder: an installation whose recent weeks may be sent and whose old ones may not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from digest_pipeline.lab.postgres import PostgresServer
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.periods import Cadence, Period, last_ended, period_of
from digest_pipeline_tests.harness.graphql import GraphQL
from digest_pipeline_tests.harness.ledgers import TIME_ZONE
from digest_pipeline_tests.harness.rim import Rim, rim_at
from digest_pipeline_tests.harness.sandbox import as_new
from digest_pipeline_tests.harness.site import Site, site_at

NAME = "weekly_digest"
CUSTOMERS = 12
OPEN_WEEKS = 20
WEEKS = 40

SENDING = {
    # One after the other, so that a slow provider leaves time to act in the middle.
    "lanes": 1,
    "concurrency": 1,
    # A lease that a test can wait for, and a run that waits for the leases of a killed one.
    "timeout_seconds": 10,
    "lease_seconds": 30,
    "in_run_wait_seconds": 60,
    "run_limit_seconds": 300,
}


@dataclass
class Desk:
    """A site, the installation that it runs, and the weeks that its customers ordered in."""

    site: Site
    rim: Rim
    periods: tuple[Period, ...]
    """``periods[n]`` ended n whole weeks ago and more; the window of the first 20 is open."""

    @property
    def graphql(self) -> GraphQL:
        return self.site.graphql

    def asset(self, name: str) -> list[str]:
        return [self.rim.digest.name, name]

    def accepted(self, *weeks: Period) -> dict[str, int]:
        """How often the provider accepted each key of these weeks."""
        labels = {week.label for week in weeks}
        return {key: n for key, n in self.rim.accepted().items() if key.split(":")[1] in labels}

    def once_each(self, *weeks: Period) -> dict[str, int]:
        """What ``accepted`` is when every customer got one digest of each of these weeks."""
        numbers = range(1, CUSTOMERS + 1)
        return {self.rim.key_of(number, week.label): 1 for week in weeks for number in numbers}


@pytest.fixture(scope="package")
def running_desk(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, shared_sandbox: SandboxProcess
) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("site")
    weeks = recent_weeks(WEEKS)
    options = {
        "name": NAME,
        "title": "Weekly digest",
        "first_period": weeks[-1].label,
        "delivery_window": {"closes_after_hours": OPEN_WEEKS * 7 * 24},
        "sending": SENDING,
    }
    days = [(week.first_day + timedelta(days=2)).isoformat() for week in weeks]
    with (
        postgres_server.database() as ledger_url,
        postgres_server.database() as dagster_url,
        pytest.MonkeyPatch.context() as patch,
        rim_at(folder, ledger_url, as_new(shared_sandbox), patch, CUSTOMERS, days, **options) as rim,
        site_at(folder, dagster_url) as site,
    ):
        yield Desk(site, rim, weeks)


@pytest.fixture
def desk(running_desk: Desk) -> Desk:
    """The site, with a provider that is well and quick."""
    running_desk.rim.sandbox.control.clear_faults()
    running_desk.rim.sandbox.change(latency_ms=0.0)
    return running_desk


def recent_weeks(count: int) -> tuple[Period, ...]:
    """Return weeks that have ended, newest first."""
    found = [last_ended(datetime.now(UTC), Cadence.WEEKLY, TIME_ZONE)]
    while len(found) < count:
        found.append(period_of(found[-1].first_day - timedelta(days=7), Cadence.WEEKLY, TIME_ZONE))
    return tuple(found)
