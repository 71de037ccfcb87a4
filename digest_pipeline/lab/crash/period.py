"""The small period that each cell is about: its customers, its specification, its keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from digest_pipeline.keys import DEFAULT_TENANT, operation_key

DIGEST, LABEL = "crash_digest", "2025-W10"
CUSTOMERS = 16
"""Customers to be reached. Beside them, one has nothing to be told and one has opted out."""

LEASE_SECONDS = 20.0

PAST_THE_LEASE = LEASE_SECONDS + 31.0
"""What passes between two runs: also longer than a failed question is put off for."""

_TABLES = """
CREATE TABLE customers (id TEXT PRIMARY KEY, email TEXT, name TEXT, opted_in INTEGER NOT NULL);
CREATE TABLE orders (customer_id TEXT NOT NULL, ordered_on TEXT NOT NULL, item TEXT NOT NULL);
"""
_CUSTOMERS = """
SELECT id AS customer_id, email AS recipient, name, opted_in FROM customers
WHERE :period_start < :period_end ORDER BY id
"""
_CONTENT = """
SELECT customer_id, item FROM orders
WHERE ordered_on >= :period_start AND ordered_on < :period_end ORDER BY item
"""
_TEMPLATE = {
    "subject.txt.j2": "{{ items | length }} things\n",
    "body.txt.j2": "{% for one in items %}{{ one.item }}\n{% endfor %}",
    "body.html.j2": "<ul>{% for one in items %}<li>{{ one.item }}</li>{% endfor %}</ul>\n",
}


def key_of(number: int) -> str:
    """Return the operation key of the n-th customer."""
    return operation_key(DIGEST, LABEL, DEFAULT_TENANT, f"customer-{number:04d}")


def write_source(folder: Path, customers: int) -> Path:
    """Write the customer database: so many to be reached, one with nothing to tell, one opted out."""
    path = folder / "source.db"
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.executescript(_TABLES)
        people = range(1, customers + 3)
        conn.executemany(
            "INSERT INTO customers VALUES (?, ?, ?, ?)",
            [
                (f"customer-{n:04d}", f"reader-{n}@example.test", f"Reader {n}", int(n != customers + 2))
                for n in people
            ],
        )
        conn.executemany(
            "INSERT INTO orders VALUES (?, '2025-03-05', ?)",
            [(f"customer-{n:04d}", f"thing of {n}") for n in people if n != customers + 1],
        )
    template = folder / "template"
    template.mkdir()
    for part, text in _TEMPLATE.items():
        (template / part).write_text(text, encoding="utf-8")
    return path


def write_spec(folder: Path, source: Path, gateway: tuple[str, Mapping[str, str]], **changes: Any) -> Path:
    """Write the period's specification: quick to send and to try again, never waiting inside a run.

    ``source`` is where ``write_source`` wrote; ``changes`` merge.
    """
    kind, settings = gateway
    fields: dict[str, Any] = {
        "name": DIGEST,
        "cadence": "weekly",
        "time_zone": "Europe/Berlin",
        "first_period": "2024-W01",
        "source": {"env": "DIGEST_LAB_SOURCE", "default": f"sqlite:///{source / 'source.db'}"},
        "customers": {"sql": _CUSTOMERS},
        "content": {
            "sql": _CONTENT,
            "template": str(source / "template"),
            "sender": "Lab <lab@sender.test>",
        },
        "gateway": {"kind": kind, "settings": dict(settings)},
        # Slow enough for several claims and several groups of results.
        "rate": {"per_second": 80, "burst": 24},
        "sending": {
            "lanes": 2,
            "concurrency": 6,
            "timeout_seconds": 5,
            "lease_seconds": LEASE_SECONDS,
            "in_run_wait_seconds": 0.3,
            "run_limit_seconds": 20,
        },
        "retry": {"base_seconds": 0.05, "cap_seconds": 0.1, "max_attempts": 100},
        "delivery_window": {"closes_after_hours": 500_000},
        "cleanup": {"delay_hours": 0},
    }
    for name, change in changes.items():
        old = fields.get(name)
        fields[name] = {**old, **change} if isinstance(old, dict) and isinstance(change, dict) else change
    path = folder / f"{DIGEST}.yaml"
    path.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return path
