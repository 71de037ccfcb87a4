"""Machines for tests: processes with a network, a disk, a process table and a name of their own.

A network is a star: a hub, in which servers listen, and machines that reach the hub by TCP and nobody else,
not even each other. All of it is anonymous namespaces that live as long as a shell waiting on a pipe of ours:
nothing has a name on the host, and everything is gone when this process is, however that ends.

with Network(folder) as network:
    with network.inside():
        ...  # servers started here listen in the hub, at HUB
    machine = network.machine("one")
    process = machine.start(["ip", "address"], env={})
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

HUB = "10.0.0.1"
"""Where the servers are, for every machine: an address inside these namespaces, unknown to the host."""

SECONDS = 30.0
_CLONE_NEWNET = 0x40000000

# Process 1 of its namespaces: when it ends, the kernel kills all the others in them.
_KEEP = 'ip link set lo up && hostname "$0" && echo ready && read -r _'

# Its own disk lies over the place where every machine has one, and the others' are hidden.
_MOUNT = 'mount --bind "$1" "$2" && mount -t tmpfs none "$3" && '


def reason_for_none() -> str | None:
    """Return why this host can't have such machines, or None if it can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True)
    return None if tried.returncode == 0 else "this container may not make network namespaces"


@dataclass
class Machine:
    """One set of namespaces. ``pid``: its first process, as the host numbers it."""

    name: str
    address: str
    keeper: subprocess.Popen[bytes]
    pid: int
    running: list[subprocess.Popen[Any]] = field(default_factory=list)

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str], folder: Path | None = None, log: IO[Any]
    ) -> subprocess.Popen[Any]:
        """Start a program on this machine; it ends with the machine."""
        enter = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--uts"]
        place = ["env", f"--chdir={folder}"] if folder else []
        process = subprocess.Popen(
            [*enter, "--", *place, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(env),
        )
        self.running.append(process)
        return process

    def lose(self) -> None:
        """Let the machine be gone at once, as if its power had failed: every process, and its network."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        self.keeper.wait(SECONDS)
        for process in self.running:
            process.wait(SECONDS)
        for pipe in (self.keeper.stdin, self.keeper.stdout, self.keeper.stderr):
            if pipe is not None:
                pipe.close()


class Network:
    """A hub and its machines. Each machine sees its own folder of ``folder/disks`` at ``folder/disk``."""

    def __init__(self, folder: Path) -> None:
        self.disk = folder / "disk"
        self._disks = folder / "disks"
        self._machines: list[Machine] = []
        for path in (self.disk, self._disks):
            path.mkdir()
        self.hub = self._boot("hub", HUB, ["--net", "--pid", "--uts"], _KEEP)
        self._in_hub("ip", "address", "add", f"{HUB}/32", "dev", "lo")

    def machine(self, name: str, number: int) -> Machine:
        """Start a machine. ``number``, from 1 to 200, decides its address."""
        own, near = f"10.0.{number}.2", f"10.0.{number}.1"
        disk = self.disk_of(name)
        keep = _MOUNT + _KEEP
        mounts = [str(disk), str(self.disk), str(self._disks)]
        made = self._boot(name, own, ["--net", "--mount", "--mount-proc", "--pid", "--uts"], keep, *mounts)
        link, port = ["ip", "link"], f"port{number}"
        _run(
            *link,
            "add",
            port,
            "netns",
            str(self.hub.pid),
            "type",
            "veth",
            "peer",
            "eth0",
            "netns",
            str(made.pid),
        )
        self._in_hub(*link, "set", port, "up")
        self._in_hub("ip", "address", "add", f"{near}/30", "dev", port)
        inside = ["nsenter", "--target", str(made.pid), "--net"]
        _run(*inside, "ip", "address", "add", f"{own}/30", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        _run(*inside, "ip", "route", "add", "default", "via", near)
        return made

    def disk_of(self, name: str) -> Path:
        """Return where a machine's disk is for us; to be filled before the machine starts."""
        path = self._disks / name
        path.mkdir(exist_ok=True)
        return path

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let what this thread starts in the block live in the hub's network."""
        ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        hubs = os.open(f"/proc/{self.hub.pid}/ns/net", os.O_RDONLY)
        try:
            _enter(hubs)
            try:
                yield
            finally:
                _enter(ours)
        finally:
            os.close(ours)
            os.close(hubs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for machine in reversed(self._machines):
            machine.lose()

    def _boot(self, name: str, address: str, kinds: Sequence[str], script: str, *args: str) -> Machine:
        keeper = subprocess.Popen(
            ["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", script, name, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert keeper.stdout is not None
        readable, _, _ = select.select([keeper.stdout], [], [], SECONDS)
        if not readable or keeper.stdout.readline() != b"ready\n":
            keeper.kill()
            said = keeper.communicate()[1].decode(errors="replace")
            raise RuntimeError(f"the machine {name} did not start: {said}")
        children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()
        made = Machine(name, address, keeper, int(children[0]))
        self._machines.append(made)
        return made

    def _in_hub(self, *command: str) -> None:
        _run("nsenter", "--target", str(self.hub.pid), "--net", *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _enter(namespace: int) -> None:
    # os.setns() is younger than the oldest Python we run on.
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")
