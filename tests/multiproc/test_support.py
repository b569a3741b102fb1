"""No process of a run outlives its test, however the test ends."""

from __future__ import annotations

import time
from pathlib import Path

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
