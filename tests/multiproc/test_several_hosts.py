"""Runs whose ranks are on three hosts: their numbers are those of one host.

Each host is a folder of its own for its pool; only TCP over loopback leads from one to another.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from connect_parity import write_weights
from forked import ForkedProcess, start_command, start_program
from forked_ranks import trained
from rich.console import Console
from rich.table import Table
from support import TESTS, descendants, run_tree

from flowtrain.observe.hosts import hosts_table
from flowtrain.observe.report import write_report
from flowtrain.train.state.logs import read_log
from flowtrain.train.state.traffic import read_traffic

LIMIT_S = 90.0
LOOP = TESTS.parent / "examples" / "connect.py"
# The backbone is divided between two hosts, and the encoder is on the third: features and their
# gradients, collectives and checkpoints cross, not all by the first host.
SHARDED = {
    "flow": {"encoder_ranks": 1, "backbone_ranks": 2, "plan_ahead": 1},
    "parallel": {"backbone": {"sharding": "full"}},
}
CONFIG = "run.yaml"
OTHERS = ("there", "far")
PLACES = {"backbone.0": "here", "backbone.1": "far", "encoder.0": "there"}


class Hosts:
    """The commands on all hosts.

    Args:
        folder: Folder of the run and of what is beside it.
        run: Folder of the run.
        tree: Configuration of the run, if it is not a loop of the user.
    """

    def __init__(self, folder: Path, run: Path, tree: dict[str, Any] | None = None) -> None:
        self.folder, self.run, self._token = folder, run, folder / "token"
        self._tree = tree or {}
        self._token.write_text("0123456789abcdef" * 2)
        self._token.chmod(0o600)
        self._pools = {
            host: tempfile.mkdtemp(prefix="flowtrain-test-", dir="/dev/shm")
            for host in ("here", *OTHERS, "twin")
        }
        self.processes: dict[str, ForkedProcess] = {}

    def start(self, *more: str, fault: str | None = None) -> None:
        """Start all hosts, and each rank where it belongs."""
        self.start_hosts(*more, fault=fault)
        self.start_ranks()

    def start_hosts(self, *more: str, fault: str | None = None) -> None:
        self.folder.joinpath(CONFIG).write_text(
            yaml.safe_dump({**self._tree, "debug": {"delay_ms": 100.0, "fault": fault}})
        )
        self.listen(self.folder / CONFIG, *more)
        for host in OTHERS:
            self.join(host, host, self.run)

    def start_ranks(self) -> None:
        for label, host in PLACES.items():
            world, _, rank = label.partition(".")
            ranks = ("rank", "--job", self.run, "--world", world)
            self.command(label, host, *ranks, RANK=rank, LOCAL_RANK="0")

    def listen(self, run: Path, *more: str) -> None:
        self.command("here", "here", "host", run, *more, "--listen", "127.0.0.1:0")
        self._address = self.wait_for("here", "can join the run at ")

    def join(self, name: str, host: str, folder: Path, *more: str) -> None:
        self.command(name, host, "host", folder, "--join", self._address, "--timeout", 30, *more)

    def command(self, name: str, host: str, *words: object, **env: str) -> None:
        if words[0] == "host":
            words = ("host", "--name", name, "--token", self._token, *words[1:])
        log = str(self.folder / f"{name}.log")
        Path(log).unlink(missing_ok=True)  # That of a process before.
        given = {**os.environ, **self._env(host), **env}
        self.processes[name] = start_command([str(word) for word in words], given, (log, log))

    def program(self, name: str, host: str, program: Path, *given: object) -> None:
        self.processes[name] = start_program(program, *given, **self._env(host))

    def _env(self, host: str) -> dict[str, str]:
        return {"FLOWTRAIN_POOL_DIR": self._pools[host], "OMP_NUM_THREADS": "1"}

    def text(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        return log.read_text() if log.exists() else ""

    def wait_for(self, name: str, text: str) -> str:
        """The rest of the line of a process that has a text, once it is there."""
        end = time.monotonic() + LIMIT_S
        while "\n" not in (found := self.text(name).partition(text)[2]):
            assert self.processes[name].poll() is None, self.text(name)
            assert time.monotonic() < end, f"no '{text}' in {self.text(name)}"
            time.sleep(0.02)
        return found.partition("\n")[0].strip()

    def wait_for_steps(self, steps: int) -> None:
        end = time.monotonic() + LIMIT_S
        while len(read_log(self.run / "metrics.jsonl")) < steps:
            assert time.monotonic() < end and self.processes["here"].poll() is None, self.logs()
            time.sleep(0.02)

    def codes(self) -> dict[str, int]:
        """Exit codes of all processes, once they have ended."""
        return {name: process.wait(LIMIT_S) for name, process in self.processes.items()}

    def logs(self) -> str:
        return "\n".join(f"== {name}\n{self.text(name)}" for name in self.processes)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for folder in self._pools.values():
            left = list(Path(folder).glob("*/*"))
            shutil.rmtree(folder)
            assert not left


def shown(table: Table | None) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.fixture
def hosts(tmp_path: Path, data: Path) -> Iterator[Hosts]:
    tree = run_tree(
        tmp_path / "run",
        data,
        train={"steps": 5},
        checkpoint={"every": 2},
        **SHARDED,
    )
    found = Hosts(tmp_path, tmp_path / "run", tree)
    yield found
    found.end()


@pytest.fixture(scope="module")
def on_one_host(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Metrics of the run on one host."""
    folder = tmp_path_factory.mktemp("one") / "run"
    return trained(run_tree(folder, data, train={"steps": 5}, **SHARDED))


def test_a_run_over_several_hosts_makes_the_numbers_of_one(
    hosts: Hosts, on_one_host: list[dict[str, Any]]
) -> None:
    hosts.start_hosts()
    hosts.wait_for("there", "ranks of this host can join")
    hosts.join("twin", "twin", hosts.run, "--name", "there")
    assert hosts.processes.pop("twin").wait(LIMIT_S) == 2
    assert "there is a host there already" in hosts.text("twin")
    assert (hosts.run / "hosts/there.json").exists()
    hosts.start_ranks()
    hosts.join("stray", "there", hosts.folder / "elsewhere")
    assert hosts.processes.pop("stray").wait(LIMIT_S) == 2
    assert "put the run on a file system that all hosts share" in hosts.text("stray")
    assert set(hosts.codes().values()) == {0}, hosts.logs()
    assert read_log(hosts.run / "metrics.jsonl") == on_one_host
    assert (hosts.run / "final/config.json").exists()
    # Features go from the encoder's host to the others, and their gradients come back.
    peers = {host.host: host.peers for host in read_traffic(hosts.run)}
    assert {peer.peer for peer in peers["there"] if peer.sent_items} == {"here", "far"}
    assert "far: sent" in (hosts.run / "edges/gateway.there.txt").read_text()
    assert "there" in shown(hosts_table(hosts.run))
    write_report([hosts.run], hosts.folder / "report.html")
    assert "The run was on 3 hosts." in (hosts.folder / "report.html").read_text()


@pytest.mark.deep
@pytest.mark.parametrize("stopped", ["one gateway", "all", "terminal"])
def test_a_signal_saves_the_run_which_goes_on_later(
    hosts: Hosts, on_one_host: list[dict[str, Any]], stopped: str
) -> None:
    hosts.start(fault="faults:hold_third_until_stopped")
    hosts.wait_for_steps(1)
    names = {"one gateway": ["there"], "all": list(hosts.processes), "terminal": ["here"]}[stopped]
    number = signal.SIGINT if stopped == "terminal" else signal.SIGTERM
    started = [hosts.processes[name].pid for name in names]
    for pid in [*started, *(below for process in started for below in descendants(process))]:
        with suppress(ProcessLookupError):
            # A terminal signals those that are in the foreground.
            if stopped != "terminal" or os.getpgid(pid) == os.getpgid(started[0]):
                os.kill(pid, number)
    codes = hosts.codes()
    assert codes["here"] == 128 + number, hosts.logs()
    assert codes["there"] == 128 + number, hosts.logs()
    assert stopped == "terminal" or "waits for encoder.0 to leave" in hosts.text("there")
    assert "which are saved; go on with the same commands on all hosts" in hosts.text("here")
    assert 0 < len(read_log(hosts.run / "metrics.jsonl")) < 5
    hosts.start("--resume")
    assert set(hosts.codes().values()) == {0}, hosts.logs()
    assert read_log(hosts.run / "metrics.jsonl") == on_one_host


def gateway_of(launcher: int) -> int:
    """The gateway that a launcher has started."""
    [found] = [
        pid
        for pid in descendants(launcher)
        if b"--listen" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("killed", "named"),
    [
        ("there", "host there is gone"),
        ("here", "the process that hosts the run has died"),
        ("gateway", "the commands of all hosts again, that with the YAML file with --resume"),
        ("backbone.1", "rank backbone.1"),
        ("encoder.0", "rank encoder.0"),
        ("backbone.0", "rank backbone.0"),
    ],
)
def test_any_death_ends_all_processes_with_an_error_that_names_it(
    hosts: Hosts, on_one_host: list[dict[str, Any]], killed: str, named: str
) -> None:
    hosts.start(fault="faults:never_end_fifth")
    hosts.wait_for_steps(3)
    if killed == "gateway":
        os.kill(gateway_of(hosts.processes["here"].pid), signal.SIGKILL)
    else:
        process = hosts.processes.pop(killed)
        process.kill()
        process.wait(LIMIT_S)  # Its memory is freed, so that its pool is no longer in use.
    codes = hosts.codes()
    assert 0 not in codes.values(), hosts.logs()
    assert killed in OTHERS or {codes[host] for host in OTHERS} == {1}, hosts.logs()
    assert named in hosts.logs(), hosts.logs()
    hosts.start("--resume")
    assert set(hosts.codes().values()) == {0}, hosts.logs()
    assert read_log(hosts.run / "metrics.jsonl") == on_one_host


@pytest.mark.deep
def test_a_loop_of_the_user_has_its_encoder_on_another_host(tmp_path: Path, data: Path) -> None:
    model, samples = tmp_path / "model", data / "several.jsonl"  # Beside its images.
    shutil.copytree(data / "model", model)
    write_weights(model)
    lines = data.joinpath("train.jsonl").read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:24]))
    weights = []
    for place in ("here", "there"):
        folder = tmp_path / place
        folder.mkdir()
        hosts = Hosts(folder, folder / "out.job")
        try:
            hosts.program("loop", "here", LOOP, model, samples, folder / "out")
            if place == "there":
                hosts.listen(hosts.run)
                hosts.join("there", "there", hosts.run)
            hosts.command("encoder", place, "encoder", "--job", hosts.run)
            assert set(hosts.codes().values()) == {0}, hosts.logs()
            assert place == "here" or "flowtrain encoder --job" in hosts.text("there")
            weights.append((folder / "out/model.safetensors").read_bytes())
        finally:
            hosts.end()
    assert weights[0] == weights[1]
