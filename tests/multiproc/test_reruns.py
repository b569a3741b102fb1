"""The same run twice writes the same log, also when it was killed in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Run, run_tree

import flowtrain_core

SHAPE = {"encoders": 2, "backbones": 2}


@pytest.mark.limit(240)
@pytest.mark.parametrize("mode", ["strict", "frozen"])
def test_a_rerun_and_a_resumed_run_write_equal_logs(mode: str, tmp_path: Path, data: Path) -> None:
    def start(name: str, *, resume: bool = False, delay_ms: float = 0.0) -> Run:
        tree = run_tree(
            tmp_path / name,
            data,
            train={"steps": 9},
            flow={**SHAPE, "mode": mode},
            checkpoint={"every": 3},
            debug={"delay_ms": delay_ms},
        )
        return Run(tree, resume=resume)

    first = start("first")
    first.succeed()
    log = (first.folder / "metrics.jsonl").read_bytes()
    killed = start("killed", delay_ms=50.0)
    killed.wait_for_steps(5)
    killed.kill_all()
    assert len(killed.metrics()) < 9
    again = start("killed", resume=True)
    again.succeed()
    # Nobody was left to remove the killed run's pool; the next run has.
    assert not [pool.name for pool in flowtrain_core.list_pools() if not pool.alive]
    assert (again.folder / "metrics.jsonl").read_bytes() == log
    weights = "final/model.safetensors"
    assert (again.folder / weights).read_bytes() == (first.folder / weights).read_bytes()


@pytest.mark.deep
@pytest.mark.limit(240)
def test_reader_processes_give_the_same_run(tmp_path: Path, data: Path) -> None:
    alone = Run(run_tree(tmp_path / "alone", data)).succeed()
    # The planner's thread ends long before the run: its readers must outlive it.
    helped = Run(run_tree(tmp_path / "helped", data, data={"workers": 2})).succeed()
    assert helped == alone
