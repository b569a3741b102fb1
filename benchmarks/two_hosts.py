"""Two hosts on this machine, by namespaces. Needs root and iproute2.

Each has its own network, mounts, IPC, names and processes, /dev/shm and /run; a pair of virtual
Ethernet devices joins them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 180.0


def wait_for(log: Path, pattern: str, since: int = 0) -> re.Match[str]:
    """The first place in a log that has a pattern, once it is there."""
    end = time.monotonic() + LIMIT_S
    while True:
        text = log.read_text()[since:] if log.exists() else ""
        if found := re.search(pattern, text):
            return found
        assert time.monotonic() < end, f"no '{pattern}' in {log}: {text[-2000:]}"
        time.sleep(0.005)


class Host:
    """A host by namespaces; `address` is its end of the link."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.space = name, f"flowtrain-{os.getpid()}-{name}"
        self.device, self.address = f"ft-{name}", f"10.77.0.{number}"
        self._run("ip", "netns", "add", self.space)
        self._init: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its first process, once its end of the link is there."""
        self.ip("addr", "add", f"{self.address}/24", "dev", self.device)
        for device in ("lo", self.device):
            self.ip("link", "set", device, "up")
        script = (
            "mount -t proc proc /proc; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; "
            f"mount -t tmpfs tmpfs /run; hostname {self.name}; exec sleep 3600"
        )
        unshare = "unshare --mount --ipc --uts --pid --fork --kill-child --propagation private"
        command = ["ip", "netns", "exec", self.space, *unshare.split(), "sh", "-c", script]
        self._init = subprocess.Popen(command)
        end = time.monotonic() + LIMIT_S
        while not (children := self.children(self._init.pid)):
            assert time.monotonic() < end
            time.sleep(0.01)
        self._pid = children[0]
        self.popen("sh", "-c", "until mountpoint -q /run; do sleep 0.05; done").wait(LIMIT_S)

    def popen(
        self, *command: object, log: Path | None = None, stdin: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on the host."""
        enter = [
            "nsenter",
            f"--wd={os.getcwd()}",
            "-t",
            str(self._pid),
            "-n",
            "-m",
            "-i",
            "-u",
            "-p",
        ]
        with (log or Path(os.devnull)).open("a") as out:
            return subprocess.Popen(
                [*enter, "--", *map(str, command)],
                stdin=stdin,
                stdout=out,
                stderr=out,
                env=os.environ,
            )

    def ip(self, *command: str) -> None:
        self._run("ip", "-n", self.space, *command)

    def bytes_on_link(self) -> int:
        """Bytes that it has sent and received."""
        shown = subprocess.run(
            ["ip", "-n", self.space, "-s", "-j", "link", "show", self.device],
            capture_output=True,
            check=True,
        )
        [link] = json.loads(shown.stdout)
        return int(link["stats64"]["rx"]["bytes"] + link["stats64"]["tx"]["bytes"])

    def kill(self) -> None:
        """Kill all of its processes at once."""
        if self._init is not None:
            self._init.kill()
            self._init.wait()
            self._init = None

    def remove(self) -> None:
        self.kill()
        subprocess.run(["ip", "netns", "del", self.space], check=False)

    @staticmethod
    def children(pid: int) -> list[int]:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts and a link between them; all is removed at the end."""
    hosts: list[Host] = []
    try:
        for number, name in enumerate(("here", "there"), start=1):
            hosts.append(Host(name, number))
        here, there = hosts
        ends = ["name", there.device, "netns", there.space]
        here.ip("link", "add", here.device, "type", "veth", "peer", *ends)
        for host in hosts:
            host.start()
        yield here, there
    finally:
        for host in hosts:
            host.remove()
