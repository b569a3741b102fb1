"""The demo's second run: the first steps again, over the pool."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from forked_ranks import forked_ranks, trained
from support import run_tree, write_tiny_data

from flowtrain.cli.main import main
from flowtrain.config import from_dict
from flowtrain.train import demo
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import METRICS, read_log


def test_decoupled_steps_have_the_losses_of_the_colocated_run_that_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_data(tmp_path, samples=16)
    # The third loss depends on the rate of the second step, and so on the length of the schedule.
    tree = run_tree(
        tmp_path / "run",
        tmp_path,
        model={"dtype": "float64"},
        optim={"schedule": "cosine"},
        flow={"ranks": 2},
    )
    steps = trained(tree)
    monkeypatch.setattr(demo, "_DECOUPLED_STEPS", 3)
    monkeypatch.setattr(demo, "train", partial(train, run_ranks=forked_ranks))
    found = demo.train_decoupled(from_dict(tree), len(steps))
    assert found["decoupled_steps"] == 3 < len(steps)
    assert found["decoupled_loss_difference"] < 1e-9
    assert found["bytes_through_pool"] > 0
    again = read_log(tmp_path / "run-decoupled" / METRICS)
    assert main(["top", str(tmp_path / "run")]) == 0
    assert "the run has ended: complete; 4 of 4 steps are saved" in capsys.readouterr().err
    assert [step["lr"] for step in again] == [step["lr"] for step in steps[:3]]

    reading = demo.read_heldout(tmp_path / "run" / "final", tmp_path / "heldout.jsonl")
    truths = {
        strip["messages"][-1]["content"]: tmp_path.joinpath(*strip["images"]).read_bytes()
        for strip in read_log(tmp_path / "heldout.jsonl")
    }
    assert {strip.expected: strip.png for strip in reading.strips} == truths
    assert reading.digits == sum(map(len, truths))
    wrong = sum(demo.edit_distance(strip.expected, strip.read) for strip in reading.strips)
    assert reading.accuracy == 1 - wrong / reading.digits
