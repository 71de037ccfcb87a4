"""A sealed week, sent by ``digest worker`` processes alone: killed in the middle, two at once, no port open."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.harness.command import Shell
from digest_pipeline_tests.harness.ledgers import ENVIRONMENT
from digest_pipeline_tests.harness.rim import Rim, rim_at
from digest_pipeline_tests.harness.sandbox import API_KEY

# Dagster 1.13 still asks pydantic for the fields of a resource by their old name. Only Dagster's.
pytestmark = pytest.mark.filterwarnings("ignore:The `__fields__` attribute:DeprecationWarning")

CUSTOMERS = 240
SENDING = {"concurrency": 8, "lanes": 1, "timeout_seconds": 2, "lease_seconds": 15}


@pytest.fixture
def sealed(
    tmp_path: Path, ledger_url: str, sandbox: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rim]:
    """A week that Dagster froze and rendered with sending disabled."""
    monkeypatch.setenv("DIGEST_SENDING", "off")
    options: dict[str, Any] = {"sending": SENDING, "rate": {"per_second": 400, "burst": 120}}
    with rim_at(tmp_path, ledger_url, sandbox, monkeypatch, CUSTOMERS, **options) as rim:
        assert rim.materialise().success
        assert (rim.states(), rim.accepted()) == ({"pending": CUSTOMERS}, {})
        yield rim


def shell_of(rim: Rim, url: str) -> Shell:
    return Shell(
        rim.folder,
        {
            "DIGEST_HOME": str(rim.folder / "home"),
            "DIGEST_LEDGER_URL": url,
            "DIGEST_SPECS": str(rim.folder / "specs"),
            "DIGEST_ENVIRONMENT": ENVIRONMENT,
            "DIGEST_SOURCE_URL": "sqlite:////nowhere/source.db",  # a worker needs no customer source
            "DIGEST_SANDBOX_URL": rim.sandbox.url,
            "DIGEST_SANDBOX_API_KEY": API_KEY,
        },
    )


@contextmanager
def running(shell: Shell, log: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker whose log goes to a file; kill it at the end if it still runs."""
    with (shell.folder / log).open("wb") as err:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("digest")), "worker", "--poll", "200ms"],
            cwd=shell.folder,
            env=shell.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def wait_until(holds: Callable[[], object], *processes: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        assert all(process.poll() is None for process in processes), "a worker ended by itself"
        time.sleep(0.05)


def listening(pid: int) -> set[str]:
    """Return the sockets of a process that wait for connections, as the kernel lists them."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(str(descriptor.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                found.add(local)
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="sockets are read from Linux's /proc")
def test_the_search_for_open_ports_finds_one():
    assert listening(os.getpid()) == set()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening(os.getpid()) == {f"0100007F:{port:04X}"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="sockets are read from Linux's /proc")
def test_workers_alone_send_a_sealed_week_once_though_one_is_killed_and_none_opens_a_port(sealed, ledger_url):
    """0 duplicates and 0 lost, by the provider's own store; with two at once after the kill."""
    shell, control = shell_of(sealed, ledger_url), sealed.sandbox.control
    sealed.sandbox.change(latency_ms=20.0)
    with running(shell, "killed.log") as first:
        control.wait(accepted=40, timeout=120)
        assert listening(first.pid) == set()
        first.send_signal(signal.SIGKILL)
        first.wait(30)
    assert set(sealed.states()) & {"claimed", "pending"}, "it was killed in the middle"
    sealed.end_leases()
    with running(shell, "one.log") as one, running(shell, "other.log") as other:
        wait_until(lambda: sealed.states() == {"sent": CUSTOMERS}, one, other)
        assert listening(one.pid) | listening(other.pid) == set()
        for process in (one, other):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in (one, other)] == [0, 0]
    keys = {sealed.key_of(n): 1 for n in range(1, CUSTOMERS + 1)}
    assert sealed.accepted() == keys
    oracle = sealed.sandbox.oracle()
    assert list(oracle.duplicates()) == []
    assert oracle.recipients_other_than_one() == 0
    for log in ("one.log", "other.log"):
        told = (shell.folder / log).read_text(encoding="utf-8")
        assert "worker_started" in told
        assert "worker_stopped" in told
        assert "@" not in told


@pytest.mark.slow
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_once_sends_what_is_due_prints_it_and_ends(sealed, ledger_url):
    shell = shell_of(sealed, ledger_url)
    disabled = shell.run("worker", "--once", "--json", DIGEST_SENDING="off")
    assert (disabled.code, disabled.json["accepted"], disabled.json["sending"]) == (0, 0, False)
    said = shell.run("worker", "--digest", "tiny_digest", "--once", "--json")
    assert (said.code, said.json) == (
        0,
        {
            "digests": ["tiny_digest"],
            "sending": True,
            "accepted": CUSTOMERS,
            "halted": {},
            "refused": {},
        },
    )
    assert f"accepted={CUSTOMERS}" in said.err
    assert shell.run("worker", "--once", "--json").json["accepted"] == 0


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_what_a_worker_cannot_do_is_said_in_one_line_before_anything_is_sent(sealed, ledger_url):
    shell = shell_of(sealed, ledger_url)
    poll = shell.run("worker", "--once", "--poll", "soon")
    assert (poll.code, "--poll is a number with a unit" in poll.error) == (2, True)
    name = shell.run("worker", "--once", "--digest", "weekly")
    assert (name.code, "no digest called 'weekly'" in name.error) == (2, True)
    elsewhere = shell.run("--log-level", "WARNING", "worker", "--once", DIGEST_ENVIRONMENT="elsewhere")
    assert (elsewhere.code, "belongs to the environment 'test'" in elsewhere.error) == (1, True)
    assert sealed.accepted() == {}
