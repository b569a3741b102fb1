"""Runs of tests end, however their test or their ranks end."""

from __future__ import annotations

import time
from pathlib import Path

from fork_server import SERVER
from forked_ranks import failure
from support import Run, end_runs, run_tree


def test_a_run_whose_test_failed_is_ended_with_the_ranks_of_a_dead_launcher(
    tmp_path: Path, data: Path
) -> None:
    with end_runs():
        run = Run(run_tree(tmp_path / "run", data, train={"steps": 500}))
        while len(run.ranks()) < 2:
            assert run.process.poll() is None
            time.sleep(0.05)
        ranks = run.ranks()
        run.process.kill()
    end = time.monotonic() + 30
    while left := [name for name, pid in ranks.items() if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_forked_rank_that_ends_before_it_joins_is_named(tmp_path: Path, data: Path) -> None:
    error = failure(run_tree(tmp_path / "run", data, debug={"fault": "sys:exit:encoder.0"}))
    assert "rank encoder.0: exit code 1 before it joined" in error
    assert "encoder.0 ends: SystemExit" in error


# Code and no function of this file, which would import what the file imports.
IN_A_FORK = """
import os, sys
assert "transformers.models.qwen3_vl.modeling_qwen3_vl" in sys.modules
assert len(os.listdir(f"/proc/{os.getppid()}/task")) == 1
"""


def test_a_fork_starts_with_the_modules_of_its_model_and_from_a_process_of_one_thread() -> None:
    rank = SERVER.Process(target=exec, args=(IN_A_FORK,))
    rank.start()
    rank.join()
    assert rank.exitcode == 0
