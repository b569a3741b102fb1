"""Any rank may be killed at any time: the others end, say who it was, and leave nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from support import Run, descendants, nothing_left, run_tree

LONGEST_S = 30.0


def long_run(folder: Path, data: Path) -> Run:
    return Run(
        run_tree(
            folder / "run",
            data,
            train={"steps": 500},
            flow={"encoders": 2, "backbones": 2},
            # Ranks wait for each other in records, collectives and verdicts alike.
            debug={"delay_ms": 20.0},
        )
    )


@pytest.mark.parametrize("victim", ["encoder.1", "backbone.0", "backbone.1"])
def test_a_killed_rank_ends_the_run_and_is_named(victim: str, tmp_path: Path, data: Path) -> None:
    with nothing_left():
        run = long_run(tmp_path, data)
        run.wait_for_steps(3)
        ranks = run.ranks()
        assert len(ranks) == 4
        os.kill(ranks[victim], signal.SIGKILL)
        killed = time.monotonic()
        code, errors = run.wait()
        assert time.monotonic() - killed < LONGEST_S
        assert code == 1
        assert f"rank {victim} (pid {ranks[victim]}): killed by signal 9" in errors
        for name, text in run.errors().items():
            assert name == victim or f"rank {victim} (pid {ranks[victim]}) died" in text, name
        assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())


def test_a_killed_launcher_ends_every_rank(tmp_path: Path, data: Path) -> None:
    with nothing_left():
        run = long_run(tmp_path, data)
        run.wait_for_steps(2)
        ranks = descendants(run.process.pid)
        run.process.kill()
        end = time.monotonic() + LONGEST_S
        while any(Path(f"/proc/{pid}").exists() for pid in ranks):
            assert time.monotonic() < end
            time.sleep(0.1)
        run.process.communicate()
        assert all("rank host" in text for text in run.errors().values())
