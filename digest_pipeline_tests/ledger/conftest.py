"""One ledger for a whole test module, on each engine in turn, for tests that plant their own rows."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from digest_pipeline.ledger.engine import Ledger
from digest_pipeline_tests.harness.ledgers import PERIOD, frozen_period, migrated, tiny_source, tiny_spec
from digest_pipeline_tests.harness.postgres import ENGINES


@pytest.fixture(scope="module", params=ENGINES)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Ledger, int]]:
    """A migrated ledger and its one manifest of twelve customers, ordinals 1 to 12, all pending."""
    folder = tmp_path_factory.mktemp("shared")
    database: AbstractContextManager[str] = nullcontext(f"sqlite:///{folder / 'ledger.db'}")
    if request.param == "postgresql":
        database = request.getfixturevalue("postgres_server").database()
    with database as url, migrated(url) as ledger, tiny_source(folder, customers=12) as source:
        (manifest_id,) = frozen_period(ledger, tiny_spec(folder), PERIOD, source)
        yield ledger, manifest_id
