"""Ranks that the user starts, with one torchrun for each world."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from forked_ranks import trained
from support import descendants, listening, nothing_left, run_tree

from flowtrain.train.state.logs import read_log

SHAPE = {"encoder_ranks": 2, "backbone_ranks": 1}
BIN = Path(sys.executable).parent


@contextmanager
def external(config: Path) -> Iterator[tuple[subprocess.Popen[str], list[subprocess.Popen[str]]]]:
    """The host of a run and the two torchruns that its commands start."""
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            stack.callback(process.communicate)
            stack.callback(end, process)
            return process

        host = start(sys.executable, "-m", "flowtrain", "host", str(config))
        assert host.stdout is not None
        commands = [shlex.split(host.stdout.readline()) for _ in range(2)]
        assert [words[2] for words in commands] == ["torchrun", "torchrun"]
        yield host, [start(*words[:2], str(BIN / words[2]), *words[3:]) for words in commands]


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def write(folder: Path, data: Path, steps: int) -> Path:
    config = folder / "run.yaml"
    tree = run_tree(folder / "run", data, train={"steps": steps}, flow=SHAPE)
    config.write_text(yaml.safe_dump(tree))
    return config


@pytest.mark.limit(240)
def test_ranks_started_by_torchrun_train_as_forked_ones_and_listen_on_loopback_alone(
    tmp_path: Path, data: Path
) -> None:
    addresses: set[str] = set()
    with nothing_left() as launchers, external(write(tmp_path, data, 3)) as (host, worlds):
        launchers.add(host.pid)
        while host.poll() is None:
            started = [process.pid for process in (host, *worlds)]
            below = [pid for process in started for pid in descendants(process)]
            addresses |= listening([*started, *below])
            time.sleep(0.5)
        output, _ = host.communicate(timeout=200)
        assert host.returncode == 0, output
        assert [world.wait(30) for world in worlds] == [0, 0]
    # The store's, and those of gloo.
    assert addresses == {"127.0.0.1"}
    forked = trained(run_tree(tmp_path / "forked", data, train={"steps": 3}, flow=SHAPE))
    assert forked == read_log(tmp_path / "run/metrics.jsonl")
    assert (tmp_path / "run/final/config.json").exists()
