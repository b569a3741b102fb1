"""Signals to the launcher leave no rank behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support import descendants, run_tree, write_tiny_data
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from flowtrain.config import load
from flowtrain.config.flow import FlowConfig
from flowtrain.config.layout import WorldLayout
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.watcher import end_of
from flowtrain.train.launch import local, processes
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.signals import exit_on_signals
from flowtrain.train.state.run_folder import open_run

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def start_sleeper(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An encoder world with one rank, which only sleeps."""
    monkeypatch.setattr(processes.sys, "executable", "sleep")
    config: Any = SimpleNamespace(run=folder)
    job: Any = SimpleNamespace(address="", nonce="")
    world = WorldLayout("encoder", 1, ("encoder",))
    return processes.start_world(config, job, world, [0], folder=folder / "logs", resume=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=8", "glibc.malloc.arena_max=8:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_ranks_have_huge_pages_unless_the_user_sets_otherwise(
    given: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    environments: list[dict[str, str]] = []
    start = processes.start_processes

    def note(**options: Any) -> Any:
        environments.extend(options["envs"].values())
        return start(**options)

    monkeypatch.setattr(processes, "start_processes", note)
    start_sleeper(tmp_path, monkeypatch).close(timeout=5)
    assert [each["GLIBC_TUNABLES"] for each in environments] == [expected]


def test_the_handlers_of_the_caller_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # As under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        start_sleeper(tmp_path, monkeypatch).close(timeout=5)
        now = {number: signal.getsignal(number) for number in SIGNALS}
        assert now == before | {signal.SIGHUP: signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_of_a_start_is_left_to_the_handlers_of_the_launcher(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SubprocessContext._start

    def signalled(self: SubprocessContext) -> None:
        os.kill(os.getpid(), number)
        start(self)

    monkeypatch.setattr(SubprocessContext, "_start", signalled)
    before = signal.getsignal(number)
    # As under nohup.
    signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
    try:
        with exit_on_signals() as stop:
            stop.allowed = True
            world = start_sleeper(tmp_path, monkeypatch)
            # The launcher knows the ranks, so that it can end them.
            assert len(world.subprocess_handlers) == 1
            assert stop.made == (0 if number == signal.SIGHUP else number)
            world.close(timeout=5)
    finally:
        signal.signal(number, before)


def test_a_signal_between_the_starts_of_two_worlds_ends_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def start(config: Any, job: Any, world: WorldLayout, *_: Any, **__: Any) -> Any:
        if world.name == "encoder":
            raise KeyboardInterrupt
        return SimpleNamespace(subprocess_handlers={}, close=lambda **_: closed.append(world.name))

    monkeypatch.setattr(local, "start_world", start)
    flow = FlowConfig(encoder_ranks=1, backbone_ranks=1)
    config: Any = SimpleNamespace(run=tmp_path, flow=flow)
    host: Any = SimpleNamespace(
        job=SimpleNamespace(nonce="n"), store=None, poll=None, attendance=None
    )
    with pytest.raises(KeyboardInterrupt):
        local.run_local_ranks(config, host, resume=False)
    assert closed == ["backbone"]


@pytest.mark.parametrize("log", ["", "flowtrain: encoder.0 ends: Checkpo"])
def test_the_reason_of_a_rank_is_in_the_store_if_its_log_is_on_a_full_disk(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = JobStore(f"127.0.0.1:{server.port}", "test", timeout_s=10)
    store.put("failed/encoder.0", "OSError: no space")
    world = start_sleeper(tmp_path, monkeypatch)
    [handler] = world.subprocess_handlers.values()
    handler.proc.wait()
    Path(world.stderrs[0]).write_text(log)
    [failure] = local._wait({"encoder": world}, store, lambda: None, None)
    world.close(timeout=5)
    assert failure.reason() == "OSError: no space"


def test_the_rank_that_failed_first_is_told_first_whatever_words_its_reason_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "DataError: train.jsonl:3: image 'the king died.png': there is no such file"
    reasons = {
        "backbone.0": end_of("encoder.0", 7, None),
        "backbone.1": end_of("encoder.0", 7, own),
        "encoder.0": own,
    }
    failures = [
        processes.Failure(label, 1, 1, tmp_path / label, reason)
        for label, reason in reasons.items()
    ]
    monkeypatch.setattr(local, "_wait", lambda *_: failures)
    flow: Any = SimpleNamespace(chosen=SimpleNamespace(worlds=()))
    config: Any = SimpleNamespace(run=tmp_path, flow=flow)
    host: Any = SimpleNamespace(
        job=SimpleNamespace(nonce="n"), store=None, poll=None, attendance=None
    )
    with pytest.raises(RunFailed, match=r"early; rank encoder\.0 .* the log of encoder\.0 is"):
        local.run_local_ranks(config, host, resume=False)


def run_file(folder: Path) -> Path:
    write_tiny_data(folder / "data", samples=8)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(folder / "run", folder / "data")))
    return path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_the_first_step_ends_every_rank_with_one_line(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-m", "flowtrain", "train", str(run_file(tmp_path))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (ranks := descendants(launcher.pid)) or len(ranks) < 2:
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.05)
    os.killpg(launcher.pid, number)
    errors = launcher.communicate()[1]
    assert launcher.returncode == code, errors
    [line] = errors.splitlines()
    assert line.startswith(f"flowtrain: {number.name}: ")
    wait_for_ends(ranks)


def wait_for_ends(processes: list[int]) -> None:
    """Wait until each has ended, whether or not its new parent has asked for its exit code."""

    def runs(process: int) -> bool:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state != "Z"

    while any(map(runs, processes)):
        time.sleep(0.05)


# Starts a rank as the launcher does, and prints its pid.
LAUNCHER_CODE = """
import os, subprocess, sys, time
rank = subprocess.Popen(
    [sys.executable, "-m", "flowtrain.train.assembly.main", *sys.argv[1:]],
    env={**os.environ, "RANK": "0", "FLOWTRAIN_LAUNCHER": str(os.getpid())},
)
print(rank.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.limit(60)
def test_a_rank_that_still_connects_ends_with_its_launcher(tmp_path: Path) -> None:
    config = load(run_file(tmp_path))
    with open_run(config, resume=False):
        pass
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = f"127.0.0.1:{silent.getsockname()[1]}"
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCHER_CODE, str(config.run / "config.yaml")),
                *("--world", "encoder", "--store", store, "--nonce", "n"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        with silent.accept()[0]:
            launcher.kill()
            launcher.communicate()
            wait_for_ends([rank])
