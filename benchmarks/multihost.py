"""A frozen run with encoder ranks on a second host, emulated by namespaces on this machine.

Each host has its own network, mounts, IPC, names and processes, /dev/shm and /run; a pair of
virtual Ethernet devices joins them. Needs root and iproute2. One run is undisturbed; in another the
link is cut, in a third the second host is killed as a whole: both go on with the encoder rank of
the first.
Each is compared with a run on one host, sample by sample.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from flowtrain.bench.conditions import conditions
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST
from flowtrain.train.state.logs import read_log

PROGRAM = [sys.executable, "-m", "flowtrain"]
PORT = 4711
SAMPLES, STEPS = 240, 30
LIMIT_S = 180.0
# Runs so long that ranks of the other host, which take seconds to start, make much of it.
DELAY_MS = 400.0


class Host:
    """A host by namespaces; `address` is its end of the link."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.space = name, f"flowtrain-{name}"
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
        while not (children := self._children(self._init.pid)):
            assert time.monotonic() < end
            time.sleep(0.01)
        self._pid = children[0]
        self.popen("sh", "-c", "until mountpoint -q /run; do sleep 0.05; done").wait(LIMIT_S)

    def popen(self, *command: object, log: Path | None = None) -> subprocess.Popen[bytes]:
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
                [*enter, "--", *map(str, command)], stdout=out, stderr=out, env=os.environ
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
    def _children(pid: int) -> list[int]:
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


def wait_for(log: Path, pattern: str, since: int = 0) -> re.Match[str]:
    """The first place in a log that has a pattern, once it is there."""
    end = time.monotonic() + LIMIT_S
    while True:
        text = log.read_text()[since:] if log.exists() else ""
        if found := re.search(pattern, text):
            return found
        assert time.monotonic() < end, f"no '{pattern}' in {log}: {text[-2000:]}"
        time.sleep(0.005)


def tree_of(run: Path, data: Path, *, delay_ms: float) -> dict[str, Any]:
    return {
        "run": str(run),
        "model": {"config": str(data / "model")},
        "data": {"path": str(data / "train.jsonl"), "workers": 0},
        "train": {"steps": STEPS, "global_batch": 8, "microbatch_tokens": 160, "threads": 1},
        "optim": {"lr": 1e-3},
        "flow": {"mode": "frozen", "item_tokens": 24, "encoder_ranks": 1, "backbone_ranks": 1},
        "pool": {"slab_bytes": 4096},
        "debug": {"delay_ms": delay_ms},
    }


def write_tree(tree: dict[str, Any]) -> Path:
    path = Path(tree["run"] + ".yaml")
    path.write_text(yaml.safe_dump(tree))
    return path


def run_on_two(folder: Path, data: Path, event: str) -> dict[str, Any]:
    """One run; `event` is none, cut, or kill."""
    folder.mkdir()
    run, token, log = folder / "run", folder / "token", folder / "log"
    token.write_text("multihost-benchmark-token")
    token.chmod(0o600)
    with two_hosts() as (here, there):
        train = here.popen(
            *PROGRAM, "train", write_tree(tree_of(run, data, delay_ms=DELAY_MS)), log=log
        )
        flags = ("--token", token, "--timeout", 60)
        here.popen(*PROGRAM, "host", run, "--listen", f"{here.address}:{PORT}", *flags, log=log)
        wait_for(log, "other hosts can join")
        joins = ("--join", f"{here.address}:{PORT}")
        there.popen(*PROGRAM, "host", folder / "there", *joins, *flags, log=folder / "there.log")
        wait_for(folder / "there.log", "host here is connected")
        there.popen(*PROGRAM, "encoder", "--job", folder / "there", log=folder / "there.log")
        wait_for(run / "pool", ".")
        found: dict[str, Any] = {"event": event, "path": "tcp"}
        if event != "none":
            # Once its encoder rank has made some of the steps.
            wait_for(folder / "there.log", "joining the run")
            time.sleep(10)
            seen, start = len(log.read_text()), time.monotonic()
            there.kill() if event == "kill" else here.ip("link", "set", here.device, "down")
            wait_for(log, "host there .* is lost", seen)
            found["detect_s"] = round(time.monotonic() - start, 3)
        assert train.wait(LIMIT_S) == 0, log.read_text()[-4000:]
        if event == "none":
            sent = wait_for(folder / "there.log", r"sent (\d+) items of (\d+) bytes")
            found |= {"items_sent": int(sent[1]), "bytes_through_pool": int(sent[2])}
            found["veth_bytes"] = here.bytes_on_link()
    return found


def compare(run: Path, base: Path) -> dict[str, Any]:
    """Losses of a run against those on one host, and samples that were lost or repeated."""
    steps, expected = (read_log(folder / "metrics.jsonl") for folder in (run, base))
    used = Counter(sample for step in steps for sample in step["samples"])
    return {
        "steps": len(steps),
        "max_rel_loss_diff": max(
            abs(a["loss"] - b["loss"]) / abs(b["loss"])
            for a, b in zip(steps, expected, strict=True)
        ),
        "lost": sum(used[sample] == 0 for sample in range(SAMPLES)),
        "repeated": sum(count - 1 for count in used.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flowtrain-multihost-"))
    try:
        data = folder / "data"
        data.mkdir()
        write_digits(data, train=SAMPLES, heldout=4, seed=3, sizes=SMALLEST)
        base = folder / "base"
        subprocess.run(
            [*PROGRAM, "train", write_tree(tree_of(base, data, delay_ms=0.0))],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        rows = []
        for event in ("none", "cut", "kill"):
            row = run_on_two(folder / event, data, event)
            row |= compare(folder / event / "run", base)
            rows.append(row)
            if not given.json:
                print(row, flush=True)
        print(json.dumps({"benchmark": "multihost", "runs": rows, **conditions()}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
