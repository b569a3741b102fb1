"""What is said of a run that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import run_tree

from flowtrain.config import dump, from_dict
from flowtrain.train.state.ending import (
    KILLED,
    code_of,
    end_of_start,
    how_it_ended,
    read_starts,
    record_start,
    recorded_end,
)
from flowtrain.train.state.run_folder import lock_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tmp_path.joinpath("config.yaml").write_text(dump(from_dict(run_tree(tmp_path, tmp_path))))
    return tmp_path


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (ValueError("rank 0:\n no space"), "failed: rank 0: no space", 1),
        (KeyboardInterrupt(), "stopped by SIGINT", 130),
        (SystemExit(143), "stopped by SIGTERM", 143),
    ],
)
def test_the_end_of_a_run_is_told_later(
    run: Path, error: BaseException, text: str, code: int
) -> None:
    with pytest.raises(type(error)), recorded_end(run):
        raise error
    assert how_it_ended(run) == (
        f"{run}: the run has ended: {text}; 0 of 4 steps are saved; "
        "--resume (flowtrain.connect: resume=True) goes on from there"
    )
    assert end_of_start(run, 0) == text and code_of(text) == code


def test_a_killed_launcher_is_told_from_one_that_runs(run: Path) -> None:
    with recorded_end(run):
        pass  # An earlier start.
    with recorded_end(run), lock_run(run):
        assert how_it_ended(run) is None and end_of_start(run, 1) is None
    with recorded_end(run):
        assert "its launcher was killed; 0 of 4" in (how_it_ended(run) or "")


def test_each_start_keeps_its_end(run: Path) -> None:
    run.joinpath("ended").write_text("failed: an older FlowTrain\n")
    with pytest.raises(ValueError, match="no space"), recorded_end(run):
        raise ValueError("no space")
    record_start(run)  # And is killed.
    assert end_of_start(run, 2) == KILLED and code_of(KILLED) == 1
    with recorded_end(run):
        starts = read_starts(run)
    assert [start.end for start in starts] == [
        *("failed: an older FlowTrain", "failed: no space", None, None),
    ]
    assert [start.began is None for start in starts] == [True, False, False, False]
    assert "has ended: complete; 0 of 4" in (how_it_ended(run) or "")
    assert code_of(end_of_start(run, 3) or "") == 0
