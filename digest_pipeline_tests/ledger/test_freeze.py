from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from digest_pipeline.content.message import unpack
from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.drift import Drift
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import DigestError, InputError, LedgerError, PeriodError, SourceError
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import Cadence, parse_period
from digest_pipeline_tests.harness import builders
from digest_pipeline_tests.harness.children import result_of, start_child
from digest_pipeline_tests.harness.ledgers import (
    AFTER,
    BEFORE,
    IN_PERIOD,
    PERIOD,
    TIME_ZONE,
    customer,
    dump,
    frozen_period,
    migrated,
    run_ledger_sql,
    run_sql,
    source_url,
    states,
    tiny_source,
    tiny_spec,
    write_customers,
)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with migrated(ledger_url) as found:
        yield found


def test_late_rows_are_drift_and_never_mail(ledger: Ledger, tmp_path: Path) -> None:
    """DUP-02."""
    digest = tiny_spec(tmp_path)
    with tiny_source(tmp_path, 3) as source:
        ids = frozen_period(ledger, digest, PERIOD, source)
        before = {
            table: dump(ledger, table) for table in ("manifest", "manifest_entry", "delivery", "content")
        }
        write_customers(tmp_path, [customer(4)])
        run_sql(
            tmp_path,
            "INSERT INTO orders (customer_id, ordered_on, item) VALUES ('customer-001', ?, 'late')",
            IN_PERIOD,
        )
        run_sql(tmp_path, "UPDATE customers SET email = 'moved@example.test' WHERE id = 'customer-002'")
        run_sql(tmp_path, "DELETE FROM orders WHERE customer_id = 'customer-003'")
        again = freeze(ledger, source, digest, PERIOD, "run-2")
        report = compose(ledger, source, digest, PERIOD, ids, "run-2")
    assert (again.created, again.manifest_ids, again.entries) == (False, ids, 3)
    assert again.drift == Drift(added=1, removed=1, readdressed=1)
    assert (report.created, report.composed) == (False, 3)
    assert {table: dump(ledger, table) for table in before} == before


def test_an_unchanged_source_has_no_drift(ledger: Ledger, tmp_path: Path) -> None:
    with tiny_source(tmp_path, 3) as source:
        frozen_period(ledger, tiny_spec(tmp_path), PERIOD, source)
        drift = freeze(ledger, source, tiny_spec(tmp_path), PERIOD, "run-2").drift
    assert drift == Drift()
    assert not drift


def test_only_the_periods_own_days_count(ledger: Ledger, tmp_path: Path) -> None:
    """PER-03, PER-08."""
    with tiny_source(tmp_path, 0) as source:
        days = (*[BEFORE] * 50, "2025-03-03", "2025-03-09", AFTER)
        write_customers(tmp_path, [customer(1, orders=days), customer(2, orders=(BEFORE, AFTER))])
        frozen = freeze(ledger, source, tiny_spec(tmp_path), PERIOD, "run-1")
        compose(ledger, source, tiny_spec(tmp_path), PERIOD, frozen.manifest_ids, "run-1")
        assert frozen.entries == 1
        with source.snapshot() as snapshot:
            rows = snapshot.content(tiny_spec(tmp_path).content, PERIOD, "default", ["customer-001"])
    assert [row["ordered_on"] for row in rows["customer-001"]] == ["2025-03-03", "2025-03-09"]


@pytest.mark.parametrize("mode", ["single", "column"])
def test_a_week_without_customers_is_sealed_with_nobody(ledger: Ledger, tmp_path: Path, mode: str) -> None:
    digest = tiny_spec(tmp_path, tenants={"mode": mode})
    with tiny_source(tmp_path, 0) as source:
        frozen = freeze(ledger, source, digest, PERIOD, "run-1")
        report = compose(ledger, source, digest, PERIOD, frozen.manifest_ids, "run-1")
        write_customers(tmp_path, [customer(1)])
        again = freeze(ledger, source, digest, PERIOD, "run-2")
    assert (frozen.created, frozen.entries, frozen.selected, frozen.excluded) == (True, 0, 0, {})
    assert (report.created, report.composed) == (True, 0)
    assert (again.created, again.entries, again.manifest_ids) == (False, 0, frozen.manifest_ids)
    assert again.drift == Drift(added=1)


def test_every_row_that_is_left_out_is_counted_and_named_with_its_reason(
    ledger: Ledger, tmp_path: Path
) -> None:
    """OBS-03."""
    with tiny_source(tmp_path, 2) as source:
        write_customers(
            tmp_path,
            [
                customer(3, opted_in=0),
                customer(4, email=None),
                customer(5, email="  "),
                customer(6, email="jo..x@example.test"),
                customer(7, email='"a b"@example.test'),
                customer(8, id="customer-001"),
                customer(10, id="nul\0here"),
                customer(11, opted_in=0),
            ],
        )
        frozen = freeze(ledger, source, tiny_spec(tmp_path), PERIOD, "run-1")
    expected = {
        "opted_out": 2,
        "missing_address": 2,
        "invalid_address": 1,
        "unsupported_address": 1,
        "duplicate_customer": 1,
        "unusable_customer_id": 1,
    }
    assert frozen.excluded == expected
    assert frozen.selected == frozen.entries + sum(expected.values()) == 10
    rows = dump(ledger, "manifest_exclusion")
    assert Counter(row["reason"] for row in rows) == expected
    assert rows[0]["customer_id"] == "customer-003"


def test_reasons_of_every_page_are_kept(ledger_url: str, tmp_path: Path) -> None:
    """OBS-03, DUP-31."""
    tiny_spec(tmp_path)
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, 0):
        write_customers(
            tmp_path, [customer(n, opted_in=n % 2, orders=(IN_PERIOD, IN_PERIOD)) for n in range(1, 7)]
        )
        write_customers(tmp_path, [customer(7, id="customer-001")])
        result_of(start_child(builders.__name__, "freeze_it", ledger_url, str(tmp_path), "run-1", 2))
        (row,) = dump(ledger, "manifest")
        assert (row["selected"], row["entries"]) == (7, 3)
        assert row["excluded"] == '{"duplicate_customer": 1, "opted_out": 3}'
        assert [one["position"] for one in dump(ledger, "manifest_exclusion")] == [1, 2, 3, 4]


def test_two_customers_with_one_address_are_two_deliveries(ledger: Ledger, tmp_path: Path) -> None:
    """LOST-15."""
    with tiny_source(tmp_path, 0) as source:
        write_customers(tmp_path, [customer(n, email="office@example.test") for n in (1, 2)])
        (manifest,) = frozen_period(ledger, tiny_spec(tmp_path), PERIOD, source)
    assert states(ledger, manifest) == {1: "pending", 2: "pending"}
    assert len({row["operation_key"] for row in dump(ledger, "manifest_entry")}) == 2


def test_customers_without_rows_are_suppressed_as_empty_and_counted(ledger: Ledger, tmp_path: Path) -> None:
    """INP-13."""
    with tiny_source(tmp_path, 0) as source:
        write_customers(tmp_path, [customer(1), customer(2, hidden=1)])
        frozen = freeze(ledger, source, tiny_spec(tmp_path), PERIOD, "run-1")
        report = compose(ledger, source, tiny_spec(tmp_path), PERIOD, frozen.manifest_ids, "run-1")
        again = compose(ledger, source, tiny_spec(tmp_path), PERIOD, frozen.manifest_ids, "run-2")
    assert (report.composed, report.empty) == (again.composed, again.empty) == (1, 1)
    assert [row["suppression"] for row in dump(ledger, "delivery")] == [None, "empty"]


def test_each_tenant_of_the_source_gets_a_manifest_of_its_own(ledger: Ledger, tmp_path: Path) -> None:
    digest = tiny_spec(tmp_path, tenants={"mode": "column"})
    with tiny_source(tmp_path, 0) as source:
        write_customers(
            tmp_path, [customer(1, tenant="b"), customer(2, tenant="a"), customer(3, tenant=None)]
        )
        frozen = freeze(ledger, source, digest, PERIOD, "run-1")
    rows = {row["tenant"]: row["entries"] for row in dump(ledger, "manifest")}
    assert rows == {"a": 1, "b": 1, "default": 0}
    assert frozen.excluded == {"missing_tenant": 1}
    assert {row["operation_key"] for row in dump(ledger, "manifest_entry")} == {
        "tiny_digest:2025-W10:b/customer-001",
        "tiny_digest:2025-W10:a/customer-002",
    }


def test_a_tenant_left_by_a_build_that_lost_does_not_keep_the_period_open(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A build of another snapshot began a manifest that the winner's snapshot does not name."""
    digest = tiny_spec(tmp_path, tenants={"mode": "column"})
    with tiny_source(tmp_path, 2) as source:
        frozen = freeze(ledger, source, digest, PERIOD, "run-1")
        run_ledger_sql(
            ledger,
            "INSERT INTO manifest (digest, period, tenant, state, build_token, key_version, time_zone, period_start_at, "
            "period_end_at, window_opens_at, window_closes_at, selected_at, freezing_run_id) SELECT digest, period, "
            "'stray', 'building', 'lost', 1, time_zone, 1, 2, 1, 2, 1, 'run-0' FROM manifest",
        )
        again = freeze(ledger, source, digest, PERIOD, "run-2")
    assert (again.created, again.entries) == (False, 2)
    assert set(frozen.manifest_ids) < set(again.manifest_ids)
    assert {row["state"] for row in dump(ledger, "manifest")} == {"sealed"}


def test_a_period_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    """PER-07."""
    digest = tiny_spec(tmp_path)
    sunday_evening = datetime(2025, 3, 9, 22, 59, tzinfo=UTC)
    with pytest.raises(PeriodError, match="has not ended"):
        digest.period("2025-W10", sunday_evening)
    assert digest.period("2025-W10", sunday_evening.replace(hour=23, minute=0)) == PERIOD


NASTY: dict[str, dict[str, Any]] = {
    "nul": {"name": "to\0tal", "item": "total\0005"},
    "crlf": {"name": "Ann\r\nBcc: x@evil.test", "item": "a\r\nb\rc"},
    "comma": {"name": "Doe, Jo"},
    "tab": {"name": "a\tb\\N\\.", "item": "\\.\n\\N\ttab"},
    "emoji": {"name": "👩‍👩‍👧 Zoë", "item": "🦀 e\u0301"},
    "bidi": {"name": "\u202eevil"},
    "idn": {"email": "jo@Bücher.TEST"},
    "dot": {"email": "jo@example.test."},
    "upper": {"email": "Jo@EXAMPLE.test"},
    "smtputf8": {"email": "jörg@example.test"},
    "none": {"name": None},
    "ünï-cödé": {},
    "a/b:c%d": {},
    "long": {"name": "n" * 300},
    " spaced ": {},
    "quote": {"id": "o'brien\"", "item": "'); DROP TABLE orders; --"},
}


def test_both_engines_freeze_identical_rows_of_a_nasty_source(
    sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """INP-01, INP-03, INP-08."""
    digest = tiny_spec(tmp_path)
    dumps = []
    with tiny_source(tmp_path, 0) as source:
        write_customers(
            tmp_path, [customer(n, **{"id": id_, **how}) for n, (id_, how) in enumerate(NASTY.items(), 1)]
        )
        for url in (sqlite_url, postgres_url):
            with migrated(url) as ledger:
                frozen = frozen_period(ledger, digest, PERIOD, source)
                assert len(frozen) == 1
                dumps.append(
                    (
                        dump(ledger, "manifest_entry", "manifest_id"),
                        dump(ledger, "manifest_exclusion", "manifest_id"),
                        [
                            (row["checksum"], row["entries"], row["excluded"])
                            for row in dump(ledger, "manifest")
                        ],
                        [row["state"] for row in dump(ledger, "delivery")],
                    )
                )
    assert dumps[0] == dumps[1]
    entries = {row["customer_id"]: row for row in dumps[0][0]}
    assert len(entries) == len(NASTY)
    assert set(dumps[0][3]) == {"pending"}
    assert entries["crlf"]["name"] == ""  # it holds an address
    assert entries["nul"]["name"] == "total"
    assert entries["idn"]["recipient"] == "jo@xn--bcher-kva.test"


def test_half_a_surrogate_pair_is_replaced_and_keeps_nobody_else_waiting(
    ledger: Ledger, tmp_path: Path
) -> None:
    """INP-09."""
    half = "CAST(x'5aeda0bd' AS TEXT)"  # as a database holds it that does not check its UTF-8
    with tiny_source(tmp_path, 3) as source:
        run_sql(tmp_path, f"UPDATE customers SET name = {half} WHERE position = 1")
        run_sql(tmp_path, f"UPDATE orders SET item = {half} WHERE customer_id = 'customer-002'")
        run_sql(tmp_path, f"UPDATE orders SET customer_id = {half} WHERE customer_id = 'customer-003'")
        run_sql(tmp_path, f"UPDATE customers SET id = {half} WHERE position = 3")
        (manifest,) = frozen_period(ledger, tiny_spec(tmp_path), PERIOD, source)
    first, second = dump(ledger, "manifest_entry")
    assert first["name"].startswith("Z\ufffd")
    assert second["customer_id"] == "customer-002"
    assert states(ledger, manifest) == {1: "pending", 2: "pending"}
    assert dump(ledger, "manifest")[0]["excluded"] == '{"unusable_customer_id": 1}'
    document = dump(ledger, "content")[1]["document"]
    assert "Z\ufffd" in unpack(document, dump(ledger, "delivery")[1]["payload_hash"]).text


def _wrong(folder: Path, sql: str) -> Any:
    return tiny_spec(folder, customers={"sql": sql + " WHERE :period_start < :period_end"})


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT id AS customer_id FROM customers", "no column recipient"),
        ("SELECT id AS customer_id, email AS recipient FROM clients", "clients"),
        ("SELECT id AS customer_id, e_mail AS recipient FROM customers", "e_mail"),
        ("SELECT id AS customer_id email AS recipient FRM customers", "syntax error"),
    ],
)
def test_a_wrong_query_is_a_source_error_that_names_the_mistake_and_seals_nothing(
    ledger: Ledger, tmp_path: Path, sql: str, said: str
) -> None:
    with tiny_source(tmp_path, 2) as source, pytest.raises(SourceError, match=said):
        freeze(ledger, source, _wrong(tmp_path, sql), PERIOD, "run-1")
    assert [row["state"] for row in dump(ledger, "manifest")] == ["building"]
    assert dump(ledger, "manifest_entry") == []


SECRET = "S3cr3t%40"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://reader:{SECRET}@127.0.0.1:1/crm?connect_timeout=3",
        f"postgresql://reader:{SECRET}@127.0.0.1:port/crm",
        f"postgresql://reader:pass/{SECRET}@127.0.0.1/crm",
        f"nosuchdatabase://reader:{SECRET}@127.0.0.1/crm",
        f"reader:{SECRET}@127.0.0.1",
        "sqlite:////nowhere/at/all/source.db",
    ],
)
def test_a_source_that_cannot_be_reached_is_a_clear_error_without_its_url_or_password(
    ledger: Ledger, tmp_path: Path, url: str
) -> None:
    """SEC-01."""
    try:
        with Source(url) as source:
            freeze(ledger, source, tiny_spec(tmp_path), PERIOD, "run-1")
    except (InputError, SourceError) as error:
        told = "".join(traceback.format_exception(error)) + repr(error)
    else:
        raise AssertionError("it was read")
    for form in (SECRET, "S3cr3t@", "S3cr3t"):
        assert form not in told
    assert dump(ledger, "manifest_entry") == []


@pytest.mark.postgresql
def test_a_postgresql_source_says_what_is_wrong_with_the_sql_and_quotes_no_values(
    sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    sql = "SELECT 'x'::int AS customer_id, 'a@example.test' AS recipient WHERE :period_start < :period_end"
    with migrated(sqlite_url) as ledger, Source(postgres_url) as source:
        with pytest.raises(SourceError) as caught:
            freeze(ledger, source, tiny_spec(tmp_path, customers={"sql": sql}), PERIOD, "run-1")
        assert "a@example.test" not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(SourceError, match='relation "clients" does not exist'):
            freeze(ledger, source, _wrong(tmp_path, "SELECT 1 FROM clients"), PERIOD, "run-1")


def test_what_fails_in_the_ledger_is_not_blamed_on_the_source(ledger: Ledger, tmp_path: Path) -> None:
    with tiny_source(tmp_path, 2) as source:
        run_ledger_sql(ledger, "DROP TABLE manifest_exclusion")
        run_sql(tmp_path, "UPDATE customers SET opted_in = 0")
        with pytest.raises(Exception, match="manifest_exclusion") as caught:
            freeze(ledger, source, tiny_spec(tmp_path), PERIOD, "run-1")
    assert not isinstance(caught.value, DigestError) or isinstance(caught.value, LedgerError)


def test_a_query_without_the_periods_bounds_is_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    """PER-08."""
    with pytest.raises(InputError, match=":period_start"):
        tiny_spec(tmp_path, customers={"sql": "SELECT id AS customer_id, email AS recipient FROM customers"})


def test_a_local_week_is_bound_as_local_days(tmp_path: Path) -> None:
    """PER-05."""
    week = parse_period("2026-W10", Cadence.WEEKLY, "Asia/Tokyo")
    digest = tiny_spec(tmp_path, time_zone="Asia/Tokyo")
    assert digest.period("2026-W10", datetime(2026, 3, 8, 15, 0, tzinfo=UTC)) == week
    assert week.time_zone != TIME_ZONE


@pytest.mark.slow
def test_freezing_ten_times_the_customers_takes_the_same_memory(ledger_url: str, tmp_path: Path) -> None:
    """MEM-01."""
    peaks = []
    for customers in (20_000, 200_000):
        folder = tmp_path / str(customers)
        folder.mkdir()
        tiny_spec(folder, name="tiny_digest", first_period="2024-W01")
        tiny_source(folder, 0).close()
        write_customers(folder, (customer(n) for n in range(1, customers + 1)))
        assert source_url(folder)
        with migrated(ledger_url) as ledger:
            peaks.append(
                result_of(start_child(builders.__name__, "memory_of_freezing", ledger_url, str(folder)))
            )
            (row,) = dump(ledger, "manifest")
            assert row["entries"] == customers
            run_ledger_sql(ledger, "DELETE FROM manifest_entry")
            run_ledger_sql(ledger, "DELETE FROM manifest")
    assert peaks[1] - peaks[0] < 60_000_000


@pytest.mark.parametrize(("mode", "items"), [("single", 2), ("column", 1)])
def test_content_of_other_tenants_is_left_out_only_where_the_source_names_tenants(
    ledger: Ledger, tmp_path: Path, mode: str, items: int
) -> None:
    """One customer id under two tenants; with a single tenant the same column is only data."""
    digest = tiny_spec(tmp_path, tenants={"mode": mode})
    sql = digest.content.sql.replace("AS item,", "AS item, o.item AS tenant,")
    digest = tiny_spec(tmp_path, tenants={"mode": mode}, content={"sql": sql})
    with tiny_source(tmp_path, 0) as source:
        write_customers(
            tmp_path, [customer(1, item="acme"), customer(2, id="customer-001", tenant="b", item="b")]
        )
        ids = frozen_period(ledger, digest, PERIOD, source)
    assert [states(ledger, one) for one in ids] == [{1: "pending"}] * len(ids)
    messages = [
        unpack(c["document"], d["payload_hash"])
        for c, d in zip(dump(ledger, "content"), dump(ledger, "delivery"), strict=True)
    ]
    assert {message.subject for message in messages} == {f"{items} things"}
