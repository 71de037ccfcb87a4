from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from digest_pipeline.content.message import unpack
from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze, header
from digest_pipeline.errors import BuildSupersededError, LedgerIntegrityError
from digest_pipeline.ledger import manifests
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.manifests import Build, Composed, ContentBuild, Entry, checksum_line
from digest_pipeline.ledger.schema import delivery, manifest_entry
from digest_pipeline.reconciliation.invariants import manifest_is_frozen
from digest_pipeline_tests.harness import builders
from digest_pipeline_tests.harness.children import end_of, result_of, start_child
from digest_pipeline_tests.harness.ledgers import (
    PERIOD,
    another,
    customer,
    dump,
    frozen_period,
    migrated,
    run_ledger_sql,
    run_sql,
    tiny_source,
    tiny_spec,
    wait_until_blocked,
    write_customers,
)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with migrated(ledger_url) as found:
        yield found


def begin(ledger: Ledger, folder: Path) -> Build:
    build = ledger.transact(lambda conn: begin_in(conn, folder))
    assert build is not None
    return build


def begin_in(conn: Connection, folder: Path) -> Build | None:
    return manifests.begin_build(conn, header(tiny_spec(folder), PERIOD, "default", "run-1"))


def entry(number: int) -> Entry:
    return Entry(
        f"k:{number}", f"c{number}", f"c{number}@example.test", f"{number:064d}", f"{number:064d}", ""
    )


def add(ledger: Ledger, build: Build, *numbers: int) -> list[Entry]:
    with ledger.write() as conn:
        return manifests.add_entries(conn, build, [entry(n) for n in numbers], len(numbers))


def seal(ledger: Ledger, build: Build) -> None:
    ledger.transact(lambda conn: manifests.seal(conn, [build]))


def test_a_manifest_is_building_until_it_is_sealed_with_its_counts(ledger: Ledger, tmp_path: Path) -> None:
    build = begin(ledger, tmp_path)
    add(ledger, build, 1, 2)
    (row,) = dump(ledger, "manifest")
    assert (row["state"], row["entries"], row["checksum"], row["sealed_at"]) == ("building", None, None, None)
    with ledger.write() as conn:
        manifests.add_exclusions(conn, build, [("c9", "opted_out"), ("c8", "opted_out")])
    seal(ledger, build)
    (row,) = dump(ledger, "manifest")
    assert (row["state"], row["entries"], row["selected"], row["excluded"]) == (
        "sealed",
        2,
        2,
        '{"opted_out": 2}',
    )
    assert [e["ordinal"] for e in dump(ledger, "manifest_entry")] == [1, 2]


def test_an_older_build_writes_nothing_after_a_newer_one_took_over(ledger: Ledger, tmp_path: Path) -> None:
    old = begin(ledger, tmp_path)
    add(ledger, old, 1, 2)
    new = begin(ledger, tmp_path)
    assert new.manifest_id == old.manifest_id
    assert dump(ledger, "manifest_entry") == []
    with pytest.raises(BuildSupersededError):
        add(ledger, old, 3)
    with pytest.raises(BuildSupersededError):
        seal(ledger, old)
    add(ledger, new, 1)
    seal(ledger, new)
    assert [e["operation_key"] for e in dump(ledger, "manifest_entry")] == ["k:1"]


def test_nothing_is_added_after_the_seal_and_no_build_begins(ledger: Ledger, tmp_path: Path) -> None:
    build = begin(ledger, tmp_path)
    seal(ledger, build)
    with pytest.raises(BuildSupersededError):
        add(ledger, build, 1)
    with pytest.raises(BuildSupersededError):
        seal(ledger, build)
    assert ledger.transact(lambda conn: begin_in(conn, tmp_path)) is None


def test_an_archived_header_refuses_a_rebuild(ledger: Ledger, tmp_path: Path) -> None:
    seal(ledger, begin(ledger, tmp_path))
    run_ledger_sql(ledger, "UPDATE manifest SET state = 'archived'")
    assert ledger.transact(lambda conn: begin_in(conn, tmp_path)) is None


def test_two_builds_that_begin_at_the_same_instant_share_one_header(ledger: Ledger, tmp_path: Path) -> None:
    """The second insert of the same period waits for the first one's commit, and takes over."""
    with ThreadPoolExecutor(1) as pool, another(ledger) as other:
        with ledger.write() as conn:
            first = begin_in(conn, tmp_path)
            second = pool.submit(begin, other, tmp_path)
            wait_until_blocked(ledger)
        taken_over = second.result(30)
    assert first is not None
    assert first.manifest_id == taken_over.manifest_id
    with pytest.raises(BuildSupersededError):
        add(ledger, first, 1)
    add(ledger, taken_over, 1)


def test_a_customer_twice_within_and_across_pages_is_written_once_and_told(
    ledger: Ledger, tmp_path: Path
) -> None:
    build = begin(ledger, tmp_path)
    assert add(ledger, build, 1, 2, 3) == []
    assert add(ledger, build, 4, 2, 5) == [entry(2)]
    seal(ledger, build)
    rows = dump(ledger, "manifest_entry")
    assert [row["operation_key"] for row in rows] == ["k:1", "k:2", "k:3", "k:4", "k:5"]
    assert dump(ledger, "manifest")[0]["entries"] == 5
    assert _entry_checksum(ledger) == dump(ledger, "manifest")[0]["checksum"]


def test_a_key_of_another_manifest_is_never_written_twice(ledger: Ledger, tmp_path: Path) -> None:
    one = begin(ledger, tmp_path)
    add(ledger, one, 1)
    seal(ledger, one)
    digest = tiny_spec(tmp_path, name="other_digest")
    other = ledger.transact(
        lambda conn: manifests.begin_build(conn, header(digest, PERIOD, "default", "run-1"))
    )
    assert other is not None
    assert add(ledger, other, 1, 2) == [entry(1)]


def _entry_checksum(ledger: Ledger) -> str:
    found = hashlib.sha256()
    for row in dump(ledger, "manifest_entry"):
        found.update(checksum_line(row["ordinal"], row["operation_key"], row["recipient_hash"]))
    return found.hexdigest()


def _content_checksum(ledger: Ledger) -> str:
    found = hashlib.sha256()
    query = select(manifest_entry, delivery.c.payload_hash).join(
        delivery,
        (delivery.c.manifest_id == manifest_entry.c.manifest_id)
        & (delivery.c.ordinal == manifest_entry.c.ordinal),
    )
    with ledger.read() as conn:
        for row in conn.execute(query.order_by(manifest_entry.c.ordinal)):
            found.update(checksum_line(row.ordinal, row.operation_key, row.recipient_hash, row.payload_hash))
    return found.hexdigest()


def test_both_checksums_are_recomputed_from_the_rows(ledger: Ledger, tmp_path: Path) -> None:
    with tiny_source(tmp_path, 5) as source:
        run_sql(tmp_path, "UPDATE orders SET hidden = 1 WHERE customer_id = 'customer-002'")
        frozen_period(ledger, tiny_spec(tmp_path), PERIOD, source)
    (row,) = dump(ledger, "manifest")
    assert _entry_checksum(ledger) == row["checksum"]
    assert _content_checksum(ledger) == row["content_checksum"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE manifest_entry SET recipient_hash = 'a' || substr(recipient_hash, 2) || 'b' WHERE ordinal = 2",
        "UPDATE manifest_entry SET operation_key = 'tiny_digest:2025-W10:somebody' WHERE ordinal = 2",
        "UPDATE delivery SET payload_hash = 'x' WHERE ordinal = 2",
    ],
)
def test_a_frozen_row_that_was_changed_is_caught(ledger: Ledger, tmp_path: Path, change: str) -> None:
    digest = tiny_spec(tmp_path)
    with tiny_source(tmp_path, 3) as source:
        ids = frozen_period(ledger, digest, PERIOD, source)
    with ledger.read() as conn:
        assert manifest_is_frozen(conn, digest, ids).holds
    if "recipient_hash" in change and ledger.is_postgresql:
        change = change.replace(" || 'b'", "")  # the column has a length there
    run_ledger_sql(ledger, change)
    with ledger.read() as conn:
        assert not manifest_is_frozen(conn, digest, ids).holds


def test_a_frozen_message_that_was_changed_is_refused_before_it_is_sent(
    ledger: Ledger, tmp_path: Path
) -> None:
    with tiny_source(tmp_path, 3) as source:
        frozen_period(ledger, tiny_spec(tmp_path), PERIOD, source)
    run_ledger_sql(
        ledger,
        "UPDATE content SET document = (SELECT document FROM content WHERE ordinal = 1) WHERE ordinal = 2",
    )
    documents, hashes = dump(ledger, "content"), dump(ledger, "delivery")
    unpack(documents[0]["document"], hashes[0]["payload_hash"])
    with pytest.raises(LedgerIntegrityError):
        unpack(documents[1]["document"], hashes[1]["payload_hash"])


@pytest.mark.parametrize("mode", ["single", "column"])
def test_two_freezes_at_once_make_one_manifest_and_the_loser_adopts_it(
    ledger_url: str, tmp_path: Path, mode: str
) -> None:
    """DUP-21, CON-11."""
    tiny_spec(tmp_path, tenants={"mode": mode})
    with migrated(ledger_url) as ledger:
        tiny_source(tmp_path, 0).close()
        write_customers(tmp_path, [customer(n, tenant=f"t{n % 3}") for n in range(1, 61)])
        children = [
            start_child(builders.__name__, "freeze_it", ledger_url, str(tmp_path), f"run-{n}", 2)
            for n in (1, 2)
        ]
        results = [result_of(child) for child in children]
        assert results[0]["ids"] == results[1]["ids"]
        assert [result["created"] for result in results].count(True) <= 1
        rows = dump(ledger, "manifest")
        assert [row["entries"] for row in rows] == ([60] if mode == "single" else [20, 20, 20])
        assert {row["state"] for row in rows} == {"sealed"}
        assert len({row["freezing_run_id"] for row in rows}) == 1
        assert len(dump(ledger, "manifest_entry")) == 60


def test_a_freeze_killed_half_way_is_built_again_whole(ledger_url: str, tmp_path: Path) -> None:
    """LOST-03."""
    digest = tiny_spec(tmp_path)
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, 20) as source:
        killed = start_child(
            builders.__name__,
            "freeze_it",
            ledger_url,
            str(tmp_path),
            "run-1",
            8,
            DIGEST_FAULT="manifest_building:kill:2",
        )
        assert end_of(killed) == -signal.SIGKILL
        (left,) = dump(ledger, "manifest")
        assert (left["state"], len(dump(ledger, "manifest_entry"))) == ("building", 8)
        frozen = freeze(ledger, source, digest, PERIOD, "run-2")
        (row,) = dump(ledger, "manifest")
        assert (frozen.created, frozen.entries, row["entries"], row["state"]) == (True, 20, 20, "sealed")
        assert frozen.manifest_ids == (left["id"],)
        assert row["build_token"] != left["build_token"]
        assert [e["ordinal"] for e in dump(ledger, "manifest_entry")] == list(range(1, 21))
        assert _entry_checksum(ledger) == row["checksum"]


def test_content_killed_half_way_is_composed_again_whole(ledger_url: str, tmp_path: Path) -> None:
    """LOST-03."""
    digest = tiny_spec(tmp_path)
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, 20) as source:
        ids = freeze(ledger, source, digest, PERIOD, "run-1").manifest_ids
        killed = start_child(
            builders.__name__,
            "compose_it",
            ledger_url,
            str(tmp_path),
            list(ids),
            "run-1",
            8,
            DIGEST_FAULT="content_building:kill:2",
        )
        assert end_of(killed) == -signal.SIGKILL
        (left,) = dump(ledger, "manifest")
        assert (left["content_sealed_at"], len(dump(ledger, "delivery"))) == (None, 8)
        report = compose(ledger, source, digest, PERIOD, ids, "run-2")
        assert (report.created, report.composed, report.empty) == (True, 20, 0)
        (row,) = dump(ledger, "manifest")
        assert row["content_sealed_at"] is not None
        assert row["content_build_token"] != left["content_build_token"]
        assert len(dump(ledger, "content")) == len(dump(ledger, "delivery")) == 20
        assert _content_checksum(ledger) == row["content_checksum"]


def begin_content(ledger: Ledger, manifest_id: int) -> ContentBuild:
    build = ledger.transact(
        lambda conn: manifests.begin_content(conn, manifest_id, "run-1", "h" * 64, "text", "{}")
    )
    assert build is not None
    return build


def add_content(ledger: Ledger, build: ContentBuild, ordinal: int) -> None:
    with ledger.write() as conn:
        manifests.add_content(conn, build, [Composed(ordinal, f"k:{ordinal}", "r", b"doc", "p")])


def test_an_older_content_build_writes_nothing_after_a_takeover_or_the_seal(
    ledger: Ledger, tmp_path: Path
) -> None:
    build = begin(ledger, tmp_path)
    add(ledger, build, 1, 2)
    seal(ledger, build)
    old = begin_content(ledger, build.manifest_id)
    add_content(ledger, old, 1)
    new = begin_content(ledger, build.manifest_id)
    assert dump(ledger, "content") == dump(ledger, "delivery") == []
    for act in (lambda: add_content(ledger, old, 2), lambda: _seal_content(ledger, old)):
        with pytest.raises(BuildSupersededError):
            act()
    add_content(ledger, new, 1)
    _seal_content(ledger, new)
    with pytest.raises(BuildSupersededError):
        add_content(ledger, new, 2)
    again = ledger.transact(
        lambda conn: manifests.begin_content(conn, build.manifest_id, "run-3", "i" * 64, "other", "{}")
    )
    assert again is None
    assert [row["hash"] for row in dump(ledger, "template")] == ["h" * 64]


def _seal_content(ledger: Ledger, build: ContentBuild) -> None:
    ledger.transact(lambda conn: manifests.seal_content(conn, [build]))


def test_content_is_not_written_for_a_manifest_that_is_not_sealed(ledger: Ledger, tmp_path: Path) -> None:
    build = begin(ledger, tmp_path)
    add(ledger, build, 1)
    with pytest.raises(BuildSupersededError):
        add_content(ledger, begin_content(ledger, build.manifest_id), 1)


def test_two_periods_that_bring_the_same_template_at_once_are_both_composed(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A backfill starts many periods with one new template; none of them may fail for it."""
    first = begin(ledger, tmp_path)
    seal(ledger, first)
    digest = tiny_spec(tmp_path, name="other_digest")
    second = ledger.transact(
        lambda conn: manifests.begin_build(conn, header(digest, PERIOD, "default", "run-1"))
    )
    assert second is not None
    seal(ledger, second)
    with ThreadPoolExecutor(1) as pool, another(ledger) as other:
        with ledger.write() as conn:
            manifests.begin_content(conn, first.manifest_id, "run-1", "h" * 64, "text", "{}")
            waiting = pool.submit(begin_content, other, second.manifest_id)
            wait_until_blocked(ledger)
        assert waiting.result(30).manifest_id == second.manifest_id
    assert len(dump(ledger, "template")) == 1
