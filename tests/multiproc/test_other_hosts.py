"""A frozen run whose encoder ranks are on another host: its numbers are those of one host.

The other host is a folder of its own for the pool and for the run; only TCP over loopback leads
there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from forked_ranks import forked_ranks, trained
from multiproc.test_elastic import check_same, elastic_tree
from support import nothing_left

from flowtrain.config import RunConfig, from_dict
from flowtrain.train.control.seats import Seats
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.run import train

LIMIT_S = 90.0


class Hosts:
    """The gateways of both hosts, and the encoder ranks of the other one, as commands.

    Args:
        run: Folder of the run.
        folder: Folder for what the other host has.
        pools: Folder for its pools.
    """

    def __init__(self, run: Path, folder: Path, pools: Path) -> None:
        self.run, self.there = run, folder / "there"
        self.token = folder / "token"
        self.token.write_text("0123456789abcdef" * 2)
        self.token.chmod(0o600)
        self.log = folder / "hosts.log"
        self._env = {"FLOWTRAIN_POOL_DIR": str(pools)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: object, there: bool) -> None:
        with self.log.open("a") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "flowtrain", *map(str, command)],
                env=os.environ | (self._env if there else {}),
                stdout=log,
                stderr=log,
            )

    def listen(self) -> str:
        """Start the gateway of the run's host; where it listens."""
        listen = ("--listen", "127.0.0.1:0", "--name", "here", "--token", self.token)
        self.start("here", "host", self.run, *listen, there=False)
        return self.wait_for("join the run at ").split()[0]

    def join(self, address: str) -> None:
        """Start the gateway of the other host, and wait until ranks can join there."""
        join = ("--join", address, "--name", "there", "--token", self.token, "--timeout", 30)
        self.start("there", "host", self.there, *join, there=True)
        self.wait_for("host there is connected")

    def encode(self, name: str) -> None:
        """Start an encoder rank on the other host."""
        self.start(name, "encoder", "--job", self.there, "--timeout", 30, there=True)

    def wait_for(self, text: str) -> str:
        """The rest of the first line of the log that has a text."""
        end = time.monotonic() + LIMIT_S
        while True:
            found = self.log.read_text().partition(text)[2]
            if "\n" in found:
                return found.partition("\n")[0]
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} has ended: {self.log.read_text()}"
            assert time.monotonic() < end, f"no '{text}' in {self.log.read_text()}"
            time.sleep(0.02)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def pools() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="flowtrain-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def wait_for_ready(store: JobStore, count: int) -> None:
    end = time.monotonic() + LIMIT_S
    while sum(seat.is_ready for seat in Seats(store).all()) < count:
        assert time.monotonic() < end, "an encoder rank is not ready"
        time.sleep(0.02)


def train_with(
    config: RunConfig, hosts: Hosts, meanwhile: Callable[[JobStore, list[ForkServerProcess]], None]
) -> None:
    """Train, and disturb the run once its ranks have joined."""

    def run_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
        store = JobStore(host.job.address, host.job.nonce, timeout_s=10.0)
        forked_ranks(config, host, resume=resume, meanwhile=lambda ranks: meanwhile(store, ranks))

    try:
        with nothing_left():
            train(config, run_ranks=run_ranks)
        for process in hosts.processes.values():
            assert process.wait(LIMIT_S) == 0, hosts.log.read_text()
    finally:
        hosts.end()


def test_encoder_ranks_of_another_host_make_the_same_numbers(
    tmp_path: Path, pools: Path, data: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    trained(elastic_tree(undisturbed, data, flow={"encoder_ranks": 1}))
    tree = elastic_tree(
        tmp_path / "run",
        data,
        flow={"encoder_ranks": 1},
        debug={"fault": "faults:hold:backbone.0"},
    )
    hosts = Hosts(tmp_path / "run", tmp_path, pools)

    def meanwhile(store: JobStore, ranks: list[ForkServerProcess]) -> None:
        hosts.join(hosts.listen())
        hosts.encode("first")
        wait_for_ready(store, 2)
        [local] = [rank for rank in ranks if rank.name == "encoder.0"]
        local.kill()
        ranks.remove(local)
        store.put("go", True)

    train_with(from_dict(tree), hosts, meanwhile)
    check_same(undisturbed, tmp_path / "run")
