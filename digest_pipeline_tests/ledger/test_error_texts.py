"""An error of the database names the problem and quotes nobody: it reaches logs and Dagster's events."""

import traceback

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from digest_pipeline.ledger.dialects import bulk_insert
from digest_pipeline.ledger.schema import manifest_entry
from digest_pipeline_tests.harness.ledgers import migrated

ADDRESS = "reader-1@example.test"
ROW = {
    "manifest_id": 1,
    "ordinal": 1,
    "operation_key": "d:2025-W10:c1",
    "customer_id": None,
    "recipient": ADDRESS,
    "recipient_hash": "r",
    "address_hash": "a",
    "name": "Reader One",
}


def _insert(conn):
    conn.execute(insert(manifest_entry).values(**ROW))


def _copy(conn):
    bulk_insert(conn, manifest_entry, tuple(ROW), [tuple(ROW.values())])


def _wrong_type(conn):
    conn.execute(
        text("SELECT CAST(:value AS bigint) + 1 WHERE 1 = CAST(:value AS bigint)"), {"value": ADDRESS}
    )


@pytest.mark.parametrize("provoke", [_insert, _copy])
def test_a_refused_row_is_not_quoted(ledger_url, provoke):
    with migrated(ledger_url) as ledger:
        with pytest.raises(DBAPIError) as caught, ledger.write() as conn:
            provoke(conn)
        told = str(caught.value) + "".join(traceback.format_exception(caught.value))
        assert ADDRESS not in told
        assert "Reader One" not in told


def test_a_refused_value_is_not_quoted(postgres_url):
    with migrated(postgres_url) as ledger:
        with pytest.raises(DBAPIError) as caught, ledger.write() as conn:
            _wrong_type(conn)
        told = str(caught.value) + "".join(traceback.format_exception(caught.value))
        assert ADDRESS not in told
        assert "SQLSTATE 22P02" in told
