import csv
import gzip
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from digest_pipeline.addresses import Rejection, check_address, normalise_address
from digest_pipeline.demo.population import person
from digest_pipeline.demo.source import SourceSummary, load_source
from digest_pipeline.errors import SourceError

DATA = files("digest_pipeline") / "demo" / "data"
SPEC = files("digest_pipeline") / "specs" / "customer_digest"
W12 = {"period_start": "1997-03-17", "period_end": "1997-03-24"}
EVERYTHING = SourceSummary(
    customers=23570, orders=69659, opted_out=1390, malformed=98, shared_address=131, beyond_ascii=463
)


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    try:
        with engine.begin() as conn:
            yield conn
    finally:
        engine.dispose()


def sql(name: str) -> str:
    return (SPEC / name).read_text(encoding="utf-8")


def page(customers: list[str], *, explain: str = "") -> sa.TextClause:
    """The content query as the pipeline asks it: one page of customers at a time."""
    wrapped = f"{explain} SELECT * FROM ({sql('content.sql')}) AS content WHERE customer_id IN :customers"
    return sa.text(wrapped).bindparams(sa.bindparam("customers", customers, expanding=True))


def purchases() -> list[dict[str, str]]:
    text = gzip.decompress((DATA / "cdnow.csv.gz").read_bytes()).decode("ascii")
    return list(csv.DictReader(text.splitlines()))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('demo') / 'source.db'}"
    load_source(url)
    return url


def test_the_packaged_data_is_the_published_set_with_its_licence_and_origin():
    packed = (DATA / "cdnow.csv.gz").read_bytes()
    digest = hashlib.sha256(gzip.decompress(packed)).hexdigest()
    assert digest in (DATA / "ORIGIN.md").read_text(encoding="utf-8")
    assert "MIT" in (DATA / "LICENSE.txt").read_text(encoding="utf-8")
    assert packed[4:8] == b"\0\0\0\0", "a time stamp would make every rebuild another file"
    rows = purchases()
    assert (len(rows), len({row["customer"] for row in rows})) == (69659, 23570)


def test_both_engines_hold_the_same_people_and_answer_the_same(source, ledger_url):
    assert load_source(ledger_url) == EVERYTHING
    customers = [f"cdnow-{number:05d}" for number in range(1, 23571, 50)]
    answers = []
    for url in (source, ledger_url):
        with connected(url) as conn:
            people = conn.execute(sa.text(sql("customers.sql")), W12).all()
            content = conn.execute(page(customers), W12).all()
        answers.append(
            (
                sorted((row[0], row[1], row[2], bool(row[3])) for row in people),
                sorted((row[0], str(row[1]), *row[2:]) for row in content),
            )
        )
    assert answers[0] == answers[1]
    assert len(answers[0][1]) > 20


def test_loading_again_changes_nothing_and_an_incomplete_source_is_rebuilt(ledger_url):
    load_source(ledger_url)
    with connected(ledger_url) as conn:
        conn.execute(sa.text("UPDATE customers SET opted_in = true"))
    assert load_source(ledger_url) == EVERYTHING
    with connected(ledger_url) as conn:
        assert conn.execute(sa.text("SELECT COUNT(*) FROM customers WHERE NOT opted_in")).scalar() == 0
        conn.execute(sa.text("DELETE FROM orders WHERE id = 69659"))
    assert load_source(ledger_url) == EVERYTHING
    with connected(ledger_url) as conn:
        assert conn.execute(sa.text("SELECT COUNT(*) FROM orders")).scalar() == 69659
        assert conn.execute(sa.text("SELECT COUNT(*) FROM customers WHERE NOT opted_in")).scalar() == 1390


def test_customers_that_the_demo_did_not_make_are_never_dropped(ledger_url):
    with connected(ledger_url) as conn:
        conn.execute(sa.text("CREATE TABLE customers (id text)"))
        conn.execute(sa.text("INSERT INTO customers VALUES ('precious')"))
    with pytest.raises(SourceError, match="customers, not made by the demo"):
        load_source(ledger_url)
    with connected(ledger_url) as conn:
        assert conn.execute(sa.text("SELECT id FROM customers")).scalars().all() == ["precious"]


def test_a_load_that_fails_half_way_leaves_nothing_behind(ledger_url, monkeypatch):
    def torn() -> Iterator[dict[str, Any]]:
        yield from purchases()[:100]
        raise OSError("the file ends here")

    with monkeypatch.context() as patched:
        patched.setattr("digest_pipeline.demo.source._purchases", torn)
        with pytest.raises(OSError, match="ends here"):
            load_source(ledger_url)
    with connected(ledger_url) as conn:
        assert sa.inspect(conn).get_table_names() == []


@pytest.mark.parametrize(
    "url", ["mysql://nowhere/x", "not a url", "postgresql+psycopg://u:S3cr3t@127.0.0.1:1/x"]
)
def test_a_place_that_cannot_hold_the_source_is_refused_without_its_password(url):
    with pytest.raises(SourceError) as caught:
        load_source(url)
    assert "S3cr3t" not in str(caught.value)


def test_in_1997_w12_two_thousand_seven_hundred_and_twenty_six_customers_bought_something(source):
    with connected(source) as conn:
        rows = conn.execute(sa.text(sql("content.sql")), W12).all()
    assert (len(rows), len({row.customer_id for row in rows})) == (2936, 2726)
    assert (min(row.ordered_on for row in rows), max(row.ordered_on for row in rows)) == (
        "1997-03-17",
        "1997-03-23",
    )


@pytest.mark.parametrize("monday", ["1997-01-06", "1997-03-17", "1997-09-01", "1998-06-22"])
def test_customers_are_those_who_bought_in_the_26_weeks_to_the_periods_end(source, monday):
    end = date.fromisoformat(monday) + timedelta(weeks=1)
    since, until = (end - timedelta(weeks=26)).isoformat(), end.isoformat()
    expected = {f"cdnow-{row['customer']}" for row in purchases() if since <= row["date"] < until}
    with connected(source) as conn:
        bounds = {"period_start": monday, "period_end": until}
        found = conn.execute(sa.text(sql("customers.sql")), bounds).scalars().all()
    assert len(found) == len(expected)
    assert set(found) == expected


def test_totals_run_to_the_periods_end_and_no_further(source):
    with connected(source) as conn:
        (row,) = conn.execute(page(["cdnow-00011"]), W12).mappings()
    mine = [r for r in purchases() if r["customer"] == "00011" and r["date"] < "1997-03-24"]
    assert row["total_orders"] == len(mine) == 3
    assert row["total_cds"] == sum(int(r["cds"]) for r in mine)
    assert round(row["total_dollars"] * 100) == sum(int(r["dollars"].replace(".", "")) for r in mine)


def test_people_who_opted_out_are_returned_as_such(source):
    with connected(source) as conn:
        flags = [bool(row.opted_in) for row in conn.execute(sa.text(sql("customers.sql")), W12)]
    assert (len(flags), flags.count(False)) == (23066, 1370)


def test_a_page_of_content_reads_only_its_customers_on_sqlite(source):
    with connected(source) as conn:
        plan = "\n".join(
            str(row[3]) for row in conn.execute(page(["a", "b"], explain="EXPLAIN QUERY PLAN"), W12)
        )
    assert "SEARCH orders USING INDEX orders_of_customer (customer_id=? AND ordered_on<?)" in plan


def test_a_page_of_content_reads_only_its_customers_on_postgresql(postgres_url):
    load_source(postgres_url)
    with connected(postgres_url) as conn:
        plan = "\n".join(conn.execute(page(["a", "b"], explain="EXPLAIN"), W12).scalars())
    assert "orders_of_customer" in plan
    assert "customer_id = ANY" in plan


def test_exactly_the_malformed_addresses_are_rejected():
    people = [person(1997, number) for number in range(1, 23571)]
    wrong = [one for one in people if isinstance(check_address(one.email), Rejection) != bool(one.malformed)]
    assert wrong == []
    assert len({one.malformed for one in people if one.malformed}) == 14


def test_a_shared_address_is_one_mailbox_spelled_in_two_ways():
    sharing = [one for one in (person(1997, number) for number in range(1, 2000)) if one.shares_with]
    assert sharing
    for one in sharing:
        other = person(1997, int(one.shares_with[-5:]))
        assert (one.email or "") != other.email
        assert normalise_address(one.email or "") == normalise_address(other.email or "")


def test_nobody_outside_the_reserved_domains_is_ever_addressed():
    reserved = (".example", "example.com", "example.net", "example.org")
    for number in range(1, 23571):
        address = check_address(person(1997, number).email)
        assert isinstance(address, Rejection) or address.ascii_domain.endswith(reserved)


def test_another_seed_makes_other_people_and_the_same_seed_the_same():
    assert person(1, 42) == person(1, 42)
    assert [person(1, n) for n in range(1, 50)] != [person(2, n) for n in range(1, 50)]


def test_the_spec_folder_has_what_its_digest_names():
    names = {Path(entry.name).name for entry in SPEC.iterdir()}
    assert {"customers.sql", "content.sql", "template"} <= names
