"""The list of a period's customers as a CSV file that no spreadsheet runs anything from."""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Row

from digest_pipeline.ledger import measures
from digest_pipeline.reconciliation.reporting.figures import Figures, waits_because
from digest_pipeline.states import CLAIMABLE, State

PAGE = 20_000
"""Rows in memory at once, whatever the size of the manifest."""

COLUMNS = (
    "operation_key",
    "customer_id",
    "tenant",
    "state",
    "proof",
    "attempts",
    "reason",
    "finished_at",
)
MISSING = "missing"
"""The state of a customer without a delivery, which no customer of a sound ledger has."""

_READ = ("ordinal", "operation_key", "customer_id", "state", "proof", "attempts", "reason", "finished_at")
# What a spreadsheet takes for a formula or a command, also behind blanks, quotes and in full width.
_FORMULA = re.compile(r"[\t\r\n]|[\s\"'`]*[=+\-@＝＋－＠]").match  # noqa: RUF001
_WAITING = sorted(CLAIMABLE)


def write_csv(conn: Connection, figures: Figures, path: Path) -> Counter[tuple[str, str]]:
    """Write one row per customer, in manifest order; return the rows by tenant and state.

    The file appears whole or not at all. Streams: memory does not grow with the manifest.
    """
    counts: Counter[tuple[str, str]] = Counter()
    now = int(figures.at.timestamp() * 1e6)
    with replacing(path) as file:
        pd.DataFrame(columns=list(COLUMNS)).to_csv(file, index=False, lineterminator="\n")
        for manifest in figures.manifests:
            hold = waits_because(figures.digest, manifest, now)
            for rows in measures.listing(conn, manifest.id, PAGE):
                frame = as_frame(rows, manifest, hold)
                for state, count in frame["state"].value_counts().items():
                    counts[manifest.tenant, str(state)] += int(count)
                frame.to_csv(file, index=False, header=False, lineterminator="\n")
    return counts


def as_frame(rows: Sequence[Row[Any]], manifest: Row[Any], hold: str | None) -> pd.DataFrame:
    """Return one page as the file has it. ``hold``: why nothing of this manifest can be claimed now."""
    frame = pd.DataFrame.from_records([tuple(row) for row in rows], columns=list(_READ))
    frame["tenant"] = neutralise(manifest.tenant)
    without = State.PENDING if manifest.content_sealed_at is None else MISSING
    frame["state"] = frame["state"].fillna(str(without))
    if hold is not None:
        waits = frame["state"].isin(_WAITING)
        frame["reason"] = frame["reason"].astype(object).mask(waits, hold)
    frame["finished_at"] = as_instants(frame["finished_at"])
    for name in ("operation_key", "customer_id"):
        frame[name] = [neutralise(text) for text in frame[name]]
    for name in ("state", "proof", "reason"):
        # A handful of words, written by this package: each is looked at once.
        frame[name] = (
            frame[name]
            .fillna("")
            .map({word: neutralise(word) for word in frame[name].dropna().unique()} | {"": ""})
        )
    return frame[list(COLUMNS)]


def neutralise(text: str) -> str:
    """Return the text with an apostrophe before it if a spreadsheet would run it; one line of it."""
    # A lone CR ends a row for some readers and is not quoted by every writer.
    one_line = text.replace("\r", " ")
    return f"'{one_line}" if _FORMULA(text) else one_line


def as_instants(microseconds: pd.Series[Any]) -> list[str]:
    """Return instants as ISO 8601 in UTC, to the millisecond; "" for None."""
    missing = microseconds.isna().to_numpy()
    values = microseconds.fillna(0).to_numpy(dtype="int64").astype("datetime64[us]")
    texts = np.datetime_as_string(values, unit="ms")
    return ["" if gone else f"{text}Z" for text, gone in zip(texts, missing, strict=True)]


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a file that takes the place of ``path`` when it is complete, and never before."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
