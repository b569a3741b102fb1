"""A frozen run whose encoder ranks are on another host: its numbers are those of one host.

The other host is a folder of its own for the pool and for the run; only TCP over loopback leads
there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from forked_ranks import forked_ranks, trained
from multiproc.test_elastic import check_same, elastic_tree, wait_for_steps
from support import TESTS, nothing_left

from flowtrain.config import RunConfig, from_dict
from flowtrain.train.control.seats import Seats
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import read_log

LIMIT_S = 90.0


class Hosts:
    """The gateways of both hosts, and the encoder ranks of the other one, as commands.

    Args:
        run: Folder of the run.
        folder: Folder for what the other host has.
        pools: Folder for its pools.
        path: Options of both gateways for the path of payloads.
    """

    def __init__(self, run: Path, folder: Path, pools: Path, *path: str) -> None:
        self.run, self.there, self.path = run, folder / "there", path
        self.token = folder / "token"
        self.token.write_text("0123456789abcdef" * 2)
        self.token.chmod(0o600)
        self.log = folder / "hosts.log"
        self._seen = 0
        self._env = {"FLOWTRAIN_POOL_DIR": str(pools)}
        # `debug.fault` names functions of `faults.py`.
        paths = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
        self._all_env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: object, there: bool) -> None:
        with self.log.open("a") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "flowtrain", *map(str, command)],
                env=self._all_env | (self._env if there else {}),
                stdout=log,
                stderr=log,
            )

    def listen(self, at: str = "127.0.0.1:0") -> str:
        """Start the gateway of the run's host; where it listens."""
        listen = ("--listen", at, "--name", "here", "--token", self.token, *self.path)
        self.start("here", "host", self.run, *listen, there=False)
        return self.wait_for("join the run at ").split()[0]

    def join(self, address: str) -> None:
        """Start the gateway of the other host, and wait until ranks can join there."""
        self.start_join(address, *self.path)
        self.wait_for("host there is connected")

    def start_join(self, address: str, *path: str) -> None:
        join = ("--join", address, "--name", "there", "--token", self.token, "--timeout", 30)
        self.start("there", "host", self.there, *join, *path, there=True)

    def encode(self, name: str) -> None:
        """Start an encoder rank on the other host."""
        self.start(name, "encoder", "--job", self.there, "--timeout", 30, there=True)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def wait_for(self, text: str) -> str:
        """The rest of the next line of the log that has a text."""
        end = time.monotonic() + LIMIT_S
        while True:
            log = self.log.read_text()
            found = log[self._seen :].partition(text)[2]
            if "\n" in found:
                self._seen = len(log) - len(found)
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


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run on one host."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    trained(elastic_tree(folder, data, flow={"encoder_ranks": 1}))
    return folder


def test_encoder_ranks_of_another_host_make_the_same_numbers(
    undisturbed: Path, tmp_path: Path, pools: Path, data: Path
) -> None:
    tree = elastic_tree(
        tmp_path / "run",
        data,
        flow={"encoder_ranks": 1},
        debug={"fault": "faults:hold:backbone.0"},
    )
    hosts = Hosts(tmp_path / "run", tmp_path, pools)

    def meanwhile(store: JobStore, ranks: list[ForkServerProcess]) -> None:
        address = hosts.listen()
        hosts.start_join(address, "--path", "ucx")
        assert hosts.processes.pop("there").wait(LIMIT_S) == 2
        assert "--path ucx: payloads of the host that listens" in hosts.log.read_text()
        hosts.join(address)
        hosts.encode("first")
        wait_for_ready(store, 2)
        [local] = [rank for rank in ranks if rank.name == "encoder.0"]
        local.kill()
        ranks.remove(local)
        store.put("go", True)

    train_with(from_dict(tree), hosts, meanwhile)
    check_same(undisturbed, tmp_path / "run")


@pytest.mark.deep
@pytest.mark.limit(480)
@pytest.mark.parametrize("path", ["tcp", "ucx"])
def test_deaths_and_stops_on_both_hosts_change_no_number(
    undisturbed: Path, tmp_path: Path, pools: Path, data: Path, path: str
) -> None:
    """All encoder ranks are on the other host; they and the gateways are killed in turn."""
    options = ["--path", path]
    if path == "ucx":
        wheel = pytest.importorskip("libucx", reason="make bench-setup installs libucx-cu12")
        options += ["--ucx", str(Path(wheel.__path__[0]) / "lib" / "libucp.so.0")]
    tree = elastic_tree(
        tmp_path / "run",
        data,
        flow={"encoder_ranks": 1, "timeout_s": 120.0},
        debug={"fault": "faults:hold_twice:backbone.0", "delay_ms": 500.0},
    )
    hosts = Hosts(tmp_path / "run", tmp_path, pools, *options)

    def meanwhile(store: JobStore, ranks: list[ForkServerProcess]) -> None:
        def progress(name: str) -> None:
            """Start an encoder rank, and wait until it has made the records of a step."""
            before = {seat.claimant for seat in Seats(store).all()}
            hosts.encode(name)
            end = time.monotonic() + LIMIT_S
            while not any(s.is_ready and s.claimant not in before for s in Seats(store).all()):
                assert time.monotonic() < end, hosts.log.read_text()
                time.sleep(0.02)
            store.put("go", True)
            steps = len(read_log(tmp_path / "run" / "metrics.jsonl"))
            wait_for_steps(tmp_path / "run", min(steps + 1, 10))

        [local] = [rank for rank in ranks if rank.name == "encoder.0"]
        local.kill()
        ranks.remove(local)
        address = hosts.listen()
        hosts.join(address)
        progress("first")
        hosts.kill("first")
        progress("second")
        os.kill(hosts.processes["there"].pid, signal.SIGSTOP)
        hosts.wait_for("host there does not answer")
        os.kill(hosts.processes["there"].pid, signal.SIGCONT)
        hosts.wait_for("host there answers again")
        hosts.kill("here")
        assert hosts.processes.pop("second").wait(LIMIT_S) != 0  # Its store was lost.
        hosts.listen(address)
        hosts.wait_for("host there is connected")
        progress("third")
        hosts.kill("there")
        assert hosts.processes.pop("third").wait(LIMIT_S) != 0
        hosts.join(address)
        progress("fourth")
        store.put("go on", True)

    train_with(from_dict(tree), hosts, meanwhile)
    check_same(undisturbed, tmp_path / "run")
