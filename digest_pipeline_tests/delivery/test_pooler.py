"""CON-03: through a real transaction pooler, where no two transactions need to share a session."""

import psycopg
import pytest

from digest_pipeline.lab.sandbox.faults import Fault
from digest_pipeline_tests.harness.delivering import REPLAYS, assert_once_each, frozen_desk, send_from
from digest_pipeline_tests.harness.pgbouncer import PROGRAM, pooled

pytestmark = [
    pytest.mark.postgresql,
    # The one program no package index has: `make test` must do without it, and .ci/run installs it.
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer"),
]

CUSTOMERS, SESSIONS = 150, 2


def test_a_session_that_must_be_kept_is_not_through_this_pooler(tmp_path, postgres_url):
    """The test of the test: a session's lock does not survive its transaction here."""
    with pooled(tmp_path, postgres_url, SESSIONS) as url:
        dsn = url.replace("postgresql+psycopg", "postgresql")
        with (
            psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as one,
            psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as other,
        ):
            one.execute("SELECT pg_advisory_lock(7)")
            assert other.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (True,)


def test_four_senders_on_two_pooled_sessions_send_everybody_one_message(
    tmp_path, postgres_url, sandbox, nursery
):
    """CON-03, with lost replies on the way."""
    with pooled(tmp_path, postgres_url, SESSIONS) as url:
        with frozen_desk(tmp_path, url, sandbox, CUSTOMERS, REPLAYS) as desk:
            desk.script(Fault.RESET_AFTER_ACCEPT, 3, 50, 99)
            done = send_from(nursery, tmp_path, url, 4)
            assert desk.counts() == {"sent": CUSTOMERS}
        assert sum(one["accepted"] for one in done) == CUSTOMERS
        assert_once_each(desk, range(1, CUSTOMERS + 1))
