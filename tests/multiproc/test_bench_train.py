"""The plain loop of `flowtrain bench train` trains as FlowTrain does."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import write_tiny_data

from flowtrain.bench.train.compare import conditions_of, loss_differences, same_losses
from flowtrain.bench.train.overhead import flow_overheads
from flowtrain.bench.train.runs import Task, run_flow, run_plain


def small_task(folder: Path) -> Task:
    write_tiny_data(folder / "data", samples=24, text_only=0.2, multi_image=0.2)
    return Task(
        model=folder / "data" / "model",
        data=folder / "data" / "train.jsonl",
        steps=3,
        warmup=1,
        global_batch=8,
        # Small, so that each rank of each variant has several microbatches in a step.
        microbatch_tokens=160,
        batch_size=2,
    )


@pytest.mark.deep
@pytest.mark.limit(480)
@pytest.mark.multiproc
def test_padded_and_packed_loops_have_the_losses_of_flowtrain(tmp_path: Path) -> None:
    task = small_task(tmp_path)
    flow = run_flow(task, tmp_path / "flow")
    for variant, busy in (("padded", False), ("packed", True)):
        plain = run_plain(task, variant, tmp_path / variant, busy=busy)
        found = loss_differences(flow, plain, variant) | conditions_of(task)
        assert same_losses(found), found
        assert plain.startup_s > 0 and plain.tokens_per_s > 0
        assert [len(step) for step in plain.busy_s] == ([2] * 3 if busy else [])
    assert flow.startup_s > 0
    assert 0 <= plain.idle_share < 0.5
    assert 0 < flow.control_share < 1


@pytest.mark.deep
@pytest.mark.limit(480)
@pytest.mark.multiproc
def test_the_backbone_alone_trains_on_the_plans_of_the_flow(tmp_path: Path) -> None:
    task = small_task(tmp_path)
    found = flow_overheads(task, tmp_path / "runs", rounds=1, modes=("bounded",))
    assert list(found) == ["flow_overhead_bounded"]
    assert found["flow_overhead_bounded"] < 1
