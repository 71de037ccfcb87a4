"""How fast the delivery loop is, as a share of what a bare HTTP client reaches beside it.

Contestants take turns in one run (A B C A B C), so that a machine that is busy for a while slows all
of them. Each has a sandbox provider of its own, whose record says in the end whether every key was
accepted exactly once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from digest_pipeline.lab.bench.contestants import Leg, Ran, in_child, run_bare, run_ours
from digest_pipeline.lab.bench.stage import RUN, bench_digest, fill, packed_messages
from digest_pipeline.lab.postgres import running_postgres
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.ledger import migrate, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.periods import periods_between

HONEST: Mapping[str, str] = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
"""PostgreSQL settings with which a commit survives a power cut: what production pays, too."""

BARE, SQLITE, POSTGRESQL = "bare aiohttp", "SQLite ledger", "PostgreSQL ledger"
AIMS: Mapping[str, float] = {SQLITE: 0.7, POSTGRESQL: 0.85}


@dataclass(frozen=True, slots=True)
class SendTrial:
    """What to measure: messages per contestant and round, the provider's latency, requests under way."""

    messages: int
    latency_ms: float = 20.0
    concurrency: int = 50
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of all rounds, and the lowest and highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float], digits: int) -> Spread:
        """Return the spread of some values, rounded."""
        return cls(round(median(values), digits), round(min(values), digits), round(max(values), digits))


@dataclass(frozen=True, slots=True)
class Standing:
    """How one contestant did. ``ratio``: its rate over the bare client's of the same round.

    ``released``: claims that went back unsent; in a run that the rate gate doesn't limit, waste.
    ``exactly_once``: the provider accepted each key once, and nothing else.
    """

    name: str
    per_second: Spread
    ratio: Spread
    aim: float | None
    cpu_ms_per_message: float
    peak_rss_mb: float
    accepted: int
    duplicates: int
    exactly_once: bool
    released: int


@dataclass(slots=True)
class _Contestant:
    name: str
    run: Callable[[Leg], Ran]
    ledger: Ledger
    provider: SandboxProcess
    ran: list[Ran] = field(default_factory=list)
    manifests: list[int] = field(default_factory=list)


def compare(trial: SendTrial, tell: Callable[[str], None] = lambda _: None) -> list[Standing]:
    """Run all contestants in turn and return their standings, the bare client's first.

    ``tell`` hears after every leg how it went.
    """
    digest = bench_digest(trial.concurrency)
    periods = periods_between(digest.first, digest.period("1998-W26"))
    with _contestants(trial) as contestants:
        for number, period in zip(range(trial.rounds), periods, strict=False):
            packed = packed_messages(digest, period)
            filled: dict[int, int] = {}
            for one in contestants:
                # The bare client reads its payloads from the first ledger before its clock starts.
                if id(one.ledger) not in filled:
                    filled[id(one.ledger)] = fill(one.ledger, digest, period, packed, trial.messages)
                one.manifests.append(filled[id(one.ledger)])
            for one in contestants:
                one.ran.append(in_child(one.run, _leg(one, trial)))
                rate = trial.messages / one.ran[-1].seconds
                tell(f"round {number + 1} of {trial.rounds}: {one.name} {rate:.0f} messages/s")
        return [_standing(one, contestants[0], trial) for one in contestants]


def to_json(trial: SendTrial, standings: list[Standing]) -> dict[str, Any]:
    """Return plain data; ``ok`` is the oracle's verdict on all contestants, not about speed."""
    return {
        "benchmark": "send",
        **asdict(trial),
        "cpus": os.cpu_count(),
        "contestants": [asdict(standing) for standing in standings],
        "ok": all(standing.exactly_once for standing in standings),
    }


@contextmanager
def _contestants(trial: SendTrial) -> Iterator[list[_Contestant]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="digest-bench-")))
        server = stack.enter_context(running_postgres(settings=HONEST))
        sqlite = _ledger(stack, f"sqlite:///{folder / 'ledger.db'}")
        postgresql = _ledger(stack, stack.enter_context(server.database()))
        yield [
            _Contestant(
                name, run, ledger, stack.enter_context(_provider(folder / f"provider-{place}.db", trial))
            )
            for place, (name, run, ledger) in enumerate(
                [(BARE, run_bare, sqlite), (SQLITE, run_ours, sqlite), (POSTGRESQL, run_ours, postgresql)]
            )
        ]


def _ledger(stack: ExitStack, url: str) -> Ledger:
    ledger = stack.enter_context(Ledger(url))
    migrate.upgrade(ledger, RUN)
    return ledger


def _provider(store: Path, trial: SendTrial) -> SandboxProcess:
    return SandboxProcess(store, SandboxSettings(latency_ms=trial.latency_ms))


def _leg(one: _Contestant, trial: SendTrial) -> Leg:
    url = one.ledger.url.render_as_string(hide_password=False)
    return Leg(url, one.manifests[-1], one.provider.url, one.provider.settings.api_key, trial.concurrency)


def _standing(one: _Contestant, bare: _Contestant, trial: SendTrial) -> Standing:
    oracle = one.provider.oracle()
    keys = sum(1 for _ in oracle.accepted_keys())
    accepted, duplicates = oracle.accepted_count(), sum(1 for _ in oracle.duplicates())
    released = 0
    if one is not bare:
        with one.ledger.read() as conn:
            released = reads.attempts_by_outcome(conn, one.manifests).get("released", 0)
    return Standing(
        name=one.name,
        per_second=Spread.of([trial.messages / ran.seconds for ran in one.ran], 1),
        ratio=Spread.of([b.seconds / a.seconds for a, b in zip(one.ran, bare.ran, strict=True)], 3),
        aim=AIMS.get(one.name),
        cpu_ms_per_message=round(1000 * median(ran.cpu_seconds for ran in one.ran) / trial.messages, 3),
        peak_rss_mb=round(max(ran.peak_rss_mb for ran in one.ran), 1),
        accepted=accepted,
        duplicates=duplicates,
        exactly_once=accepted == keys == trial.messages * trial.rounds and not duplicates,
        released=released,
    )
