"""The machines of these tests are real enough, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from digest_pipeline_tests.harness.celery import wait_until
from digest_pipeline_tests.harness.network import Machine, Network, reason_for_none

MISSING = reason_for_none()
# As in test_celery: root, and a kernel that allows it.
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

PATH = {"PATH": os.environ.get("PATH", "")}
CONNECT = "import socket; socket.create_connection(('{}', 7), 1)"

HOLDER = """
import sys, time
from pathlib import Path
from digest_pipeline_tests.harness.network import Network
with Network(Path(sys.argv[1])) as network:
    machine = network.machine("one", 1)
    machine.start(["sleep", "600"], env={}, log=sys.stderr)
    print(network.hub.pid, machine.pid, flush=True)
    time.sleep(600)
"""


def _said(machine: Machine, command: list[str], folder: Path) -> str:
    log = folder / "said"
    with log.open("wb") as file:
        machine.start(command, env=PATH, log=file).wait(30)
    return log.read_text()


def test_a_machine_has_a_name_a_disk_and_a_network_of_its_own_and_reaches_only_the_hub(
    tmp_path: Path,
) -> None:
    with Network(tmp_path) as network:
        (network.disk_of("one") / "mine").touch()
        one, two = network.machine("one", 1), network.machine("two", 2)
        assert _said(one, ["hostname"], tmp_path) == "one\n"
        assert _said(one, ["ls", str(network.disk)], tmp_path) == "mine\n"
        assert (
            _said(two, ["ls", str(network.disk), str(network.disk.parent / "disks" / "one")], tmp_path) != ""
        )
        assert "mine" not in _said(
            two, ["ls", str(network.disk), str(network.disk.parent / "disks")], tmp_path
        )
        # Nobody listens there: the hub says so, and of the other machine nothing is heard.
        assert "ConnectionRefusedError" in _said(
            two, [sys.executable, "-c", CONNECT.format("10.0.0.1")], tmp_path
        )
        away = _said(two, [sys.executable, "-c", CONNECT.format(one.address)], tmp_path)
        assert "ConnectionRefusedError" not in away
        assert "Error" in away


def test_nothing_is_left_of_a_network_whose_test_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as test:
        assert test.stdout is not None
        pids = [int(part) for part in test.stdout.readline().split()]
        assert len(pids) == 2
        test.kill()
    wait_until("its machines are gone", lambda: not any(_is_alive(pid) for pid in pids))


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
