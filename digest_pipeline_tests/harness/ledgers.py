"""Small real ledgers: a tiny digest, a tiny customer source, a frozen period, and planted rows.

digest = tiny_spec(tmp_path)
with migrated(ledger_url) as ledger, tiny_source(tmp_path, customers=10) as source:
    (manifest_id,) = frozen_period(ledger, digest, PERIOD, source)
    plant(ledger, manifest_id, 3, "unknown")
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import Row, select, text

from digest_pipeline.eligibility.compose import compose
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.ledger import migrate
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import delivery
from digest_pipeline.periods import Cadence, Period, parse_period
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import load_file
from digest_pipeline.states import State

TIME_ZONE = "Europe/Berlin"
LABEL = "2025-W10"
PERIOD = parse_period(LABEL, Cadence.WEEKLY, TIME_ZONE)
IN_PERIOD, BEFORE, AFTER = "2025-03-05", "2025-03-02", "2025-03-10"
"""Days of orders: inside the period, the day before it and the day after it."""

ENVIRONMENT = "test"

_CUSTOMERS_SQL = """
SELECT c.id AS customer_id, c.email AS recipient, c.name AS name, c.opted_in AS opted_in, c.tenant AS tenant
FROM customers AS c
WHERE EXISTS (
    SELECT 1 FROM orders AS o
    WHERE o.customer_id = c.id AND o.ordered_on >= :period_start AND o.ordered_on < :period_end)
ORDER BY c.position
"""
_CONTENT_SQL = """
SELECT o.customer_id AS customer_id, o.item AS item, o.ordered_on AS ordered_on
FROM orders AS o
WHERE o.hidden = 0 AND o.ordered_on >= :period_start AND o.ordered_on < :period_end
ORDER BY o.id
"""
_TEMPLATE = {
    "subject.txt.j2": "{{ items | length }} things\n",
    "body.txt.j2": "{% for one in items %}{{ one.item }}\n{% endfor %}",
    "body.html.j2": "<ul>{% for one in items %}<li>{{ one.item }}</li>{% endfor %}</ul>\n",
}
_SOURCE_TABLES = """
CREATE TABLE IF NOT EXISTS customers (
    position INTEGER PRIMARY KEY, id TEXT, email TEXT, name TEXT, opted_in INTEGER NOT NULL, tenant TEXT);
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY, customer_id TEXT NOT NULL, ordered_on TEXT NOT NULL, item TEXT NOT NULL,
    hidden INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS orders_of ON orders (customer_id, ordered_on);
"""


def spec_fields(folder: Path, **overrides: Any) -> dict[str, Any]:
    """Return the fields of the tiny digest as its YAML has them, changed by ``overrides`` (merged deep)."""
    template = folder / "template"
    template.mkdir(parents=True, exist_ok=True)
    for part, source in _TEMPLATE.items():
        if not (template / part).exists():
            (template / part).write_text(source, encoding="utf-8")
    fields: dict[str, Any] = {
        "name": "tiny_digest",
        "cadence": "weekly",
        "time_zone": TIME_ZONE,
        "first_period": "2024-W01",
        "source": {"env": "DIGEST_SOURCE_URL", "default": source_url(folder)},
        "customers": {"sql": _CUSTOMERS_SQL},
        "content": {"sql": _CONTENT_SQL, "template": "template", "sender": "Tiny <tiny@sender.test>"},
        "gateway": {"kind": "sandbox", "settings": {"url": {"env": "DIGEST_SANDBOX_URL"}}},
        "rate": {"per_second": 10_000, "burst": 10_000},
        # Half a century: the period's window is open whenever the test runs.
        "delivery_window": {"opens_after_hours": 0, "closes_after_hours": 500_000},
    }
    return _merged(fields, overrides)


def tiny_spec(folder: Path, **overrides: Any) -> Digest:
    """Return a digest loaded from a YAML file in ``folder``; ``cleanup={"delay_hours": 0}`` and alike merge."""
    fields = spec_fields(folder, **overrides)
    path = folder / f"{fields['name']}.yaml"
    path.write_text(yaml.safe_dump(fields, allow_unicode=True), encoding="utf-8")
    return load_file(path)


def source_url(folder: Path) -> str:
    """Return where ``tiny_source`` keeps its rows."""
    return f"sqlite:///{folder / 'source.db'}"


def tiny_source(folder: Path, customers: int = 10, **keywords: Any) -> Source:
    """Return a source of ``customers`` customers, each with one order inside the period.

    Customer n is ``customer-00n``, ``reader-n@example.test``, position n. Keywords go to ``customer``.
    """
    run_sql(folder, "SELECT 1")
    write_customers(folder, (customer(number, **keywords) for number in range(1, customers + 1)))
    return Source(source_url(folder))


def customer(number: int, **columns: Any) -> dict[str, Any]:
    """Return one customer, with ``columns`` changed; ``orders`` are the days of its orders."""
    row = {
        "position": number,
        "id": f"customer-{number:03d}",
        "email": f"reader-{number}@example.test",
        "name": f"Reader {number}",
        "opted_in": 1,
        "tenant": "acme",
        "orders": (IN_PERIOD,),
        "hidden": 0,
        "item": f"thing of {number}",
    }
    return row | columns


def write_customers(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add customers and their orders to the tiny source."""
    with closing(_connect(folder)) as conn, conn:
        for row in rows:
            conn.execute(
                "INSERT INTO customers (position, id, email, name, opted_in, tenant) "
                "VALUES (:position, :id, :email, :name, :opted_in, :tenant)",
                {key: row[key] for key in ("position", "id", "email", "name", "opted_in", "tenant")},
            )
            conn.executemany(
                "INSERT INTO orders (customer_id, ordered_on, item, hidden) VALUES (?, ?, ?, ?)",
                [
                    (row["id"], day, row["item"], row["hidden"])
                    for day in row["orders"]
                    if row["id"] is not None
                ],
            )


def run_sql(folder: Path, statement: str, *parameters: Any) -> None:
    """Change the tiny source."""
    with closing(_connect(folder)) as conn, conn:
        conn.execute(statement, parameters)


def _connect(folder: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(folder / "source.db")
    conn.executescript(_SOURCE_TABLES)
    return conn


def migrated(url: str, environment: str = ENVIRONMENT) -> Ledger:
    """Return the ledger at a URL, brought to this build's schema; use it as a context manager."""
    ledger = Ledger(url)
    migrate.upgrade(ledger, environment)
    return ledger


def another(ledger: Ledger) -> Ledger:
    """Return the same database with connections and a writer's lock of its own, as another process has."""
    return Ledger(ledger.url.render_as_string(hide_password=False))


def wait_until_blocked(ledger: Ledger) -> None:
    """Return once some transaction of the database waits for a lock that another one holds.

    At once on SQLite, which has no way to tell: there the other one waits before its first statement.
    """
    if not ledger.is_postgresql:
        return
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with ledger.read() as conn:
            if conn.execute(query).scalar_one():
                return
        time.sleep(0.01)
    raise AssertionError("no transaction waits for a lock")


def frozen_period(
    ledger: Ledger, digest: Digest, period: Period, source: Source, run_id: str = "run-1"
) -> tuple[int, ...]:
    """Freeze and compose a period; return its manifests: every delivery is pending and due."""
    frozen = freeze(ledger, source, digest, period, run_id)
    compose(ledger, source, digest, period, frozen.manifest_ids, run_id)
    return frozen.manifest_ids


def plant(ledger: Ledger, manifest_id: int, ordinal: int, state: str, **columns: Any) -> None:
    """Put one delivery into a state with raw SQL, with what the database demands of it, and ``columns``.

    Its token is 1,000 + ordinal, but for pending. Instants are microseconds. Not through the
    transitions: this is how a test starts from anywhere.
    """
    values = {**_of_state(State(state), 1_000 + ordinal), **columns}
    assignments = ", ".join(f"{name} = :{name}" for name in values)
    run_ledger_sql(
        ledger,
        f"UPDATE delivery SET {assignments} WHERE manifest_id = :m AND ordinal = :o",
        **values,
        m=manifest_id,
        o=ordinal,
    )


def plant_attempt(ledger: Ledger, manifest_id: int, ordinal: int, token: int, **columns: Any) -> None:
    """Write one attempt with raw SQL: an acceptance of run-1/s1, but for ``columns``."""
    values = {
        "token": token,
        "manifest_id": manifest_id,
        "ordinal": ordinal,
        "claimed_by": "run-1/s1",
        "gateway": "sandbox",
        "account": "a1",
        "claimed_at": 1,
        "ended_at": 2,
        "stage": "after_wire",
        "outcome": "accepted",
        "charged": True,
        "replayed": False,
        **columns,
    }
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    run_ledger_sql(ledger, f"INSERT INTO attempt ({names}) VALUES ({marks})", **values)


def _of_state(state: State, token: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "state": str(state),
        "due_at": 1 if state in (State.PENDING, State.RETRY, State.UNKNOWN) else None,
        "token": None if state is State.PENDING else token,
        "lease_ends": 2**60 if state is State.CLAIMED else None,
        "claimed_at": None if state is State.PENDING else 1_000,
        "claimed_by": None if state is State.PENDING else "run-0/s1",
        "gateway": None if state is State.PENDING else "sandbox",
        "account": None if state is State.PENDING else "a1",
        "ambiguous_at": 1_000 if state is State.UNKNOWN else None,
        "ambiguous_token": token if state is State.UNKNOWN else None,
        "absent_at": None,
        "attempts": 0,
        "budget_from": None,
        "hold_reason": None,
        "failure_class": None,
        "message_id": None,
        "suppression": "opted_out" if state is State.SUPPRESSED else None,
        "proof": "accepted" if state in (State.SENT, State.CLEANED) else None,
        "cleaned_at": 3_000 if state is State.CLEANED else None,
        "finished_at": None,
    }
    if state not in (State.PENDING, State.CLAIMED, State.RETRY, State.UNKNOWN):
        values["finished_at"] = 2_000
    return values


def run_ledger_sql(ledger: Ledger, statement: str, **parameters: Any) -> Sequence[Row[Any]]:
    """Run raw SQL in a write transaction of its own; return the rows, if it gives any."""
    with ledger.write() as conn:
        result = conn.execute(text(statement), parameters)
        return result.all() if result.returns_rows else []


def delivery_row(ledger: Ledger, manifest_id: int, ordinal: int) -> Row[Any]:
    """Return one row of the delivery table."""
    with ledger.read() as conn:
        where = (delivery.c.manifest_id == manifest_id) & (delivery.c.ordinal == ordinal)
        return conn.execute(select(delivery).where(where)).one()


def states(ledger: Ledger, manifest_id: int) -> dict[int, str]:
    """Return the state of every delivery of a manifest, by ordinal."""
    query = select(delivery.c.ordinal, delivery.c.state).where(delivery.c.manifest_id == manifest_id)
    with ledger.read() as conn:
        return {row.ordinal: row.state for row in conn.execute(query.order_by(delivery.c.ordinal))}


def dump(ledger: Ledger, table: str, *without: str) -> list[dict[str, Any]]:
    """Return every row of a table but the columns ``without``, in the order of its primary key."""
    from digest_pipeline.ledger.schema import metadata

    found = metadata.tables[table]
    columns = [column for column in found.c if column.name not in without]
    with ledger.read() as conn:
        return [dict(row._mapping) for row in conn.execute(select(*columns).order_by(*found.primary_key))]


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(value, Mapping) and isinstance(old, dict) else value
    return {key: value for key, value in merged.items() if value is not ...}
