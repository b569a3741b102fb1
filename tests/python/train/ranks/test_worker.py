"""A rank's process says why it ends, however early that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import run_tree
from torch.distributed import TCPStore

from flowtrain.config import ConfigError, from_dict
from flowtrain.train.control.job import Job, JobHost
from flowtrain.train.control.store import Board
from flowtrain.train.ranks.worker import Worker
from flowtrain.train.state.checkpoint import CheckpointError

MISSING = "flowtrain: encoder.0 ends: ConfigError: {path}: there is no such file"


def test_a_rank_that_cannot_be_set_up_says_why_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "gone.yaml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "flowtrain.train.ranks.worker", str(path)),
            *("--world", "encoder", "--store", "127.0.0.1:1", "--nonce", "n"),
        ],
        env={**os.environ, "RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == MISSING.format(path=path)


def test_a_rank_that_has_joined_is_not_joined_by_another(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(f"127.0.0.1:{store.port}", "test")
    assert Board(job.store, job.nonce, timeout_s=10).claim("encoder.0")
    config = from_dict(run_tree(tmp_path, tmp_path, flow={"start_deadline_s": 5.0}))
    with pytest.raises(RuntimeError, match=r"encoder.0 has joined already; start each command on"):
        Worker(config, "encoder", 0, job, resume=False)


def test_a_rank_goes_on_from_no_other_step_than_the_launcher(tmp_path: Path) -> None:
    config = from_dict(run_tree(tmp_path, tmp_path, flow={"start_deadline_s": 5.0}))
    host = JobHost(config, first=2)
    rank = Worker(config, "encoder", 0, host.job, resume=False)
    try:
        with pytest.raises(CheckpointError, match=r"from step 0 \(no .* launcher from step 2: a r"):
            rank.run()
    finally:
        rank.watcher.stop()
        rank.heartbeat.stop()
        rank.pool.close()
        host.close()


def test_a_rank_beyond_those_of_the_job_does_not_join_it(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(f"127.0.0.1:{store.port}", "test")
    config = from_dict(run_tree(tmp_path, tmp_path, flow={"start_deadline_s": 1.0}))
    with pytest.raises(ConfigError, match=r"RANK=1: encoder.1 is not .* flow.encoders=1 and"):
        Worker(config, "encoder", 1, job, resume=False)
    assert Board(job.store, job.nonce, timeout_s=10).claim("encoder.1")
