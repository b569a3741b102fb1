"""Metrics of every step are logged, and printed for some."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flowtrain.config.layout import RankLayout
from flowtrain.config.optim import OptimConfig, ParameterGroup
from flowtrain.cost import ModuleFlops
from flowtrain.steps import Document, StepPlan
from flowtrain.train.control.exchange import StepDecision
from flowtrain.train.ranks.metrics import Metrics, StepTiming
from flowtrain.train.ranks.utilization import Peaks, Utilization
from flowtrain.train.state.logs import read_log
from flowtrain.train.state.optimizer import LearningRates

RATES = LearningRates(OptimConfig(), [], steps=9)
GRIDS = ((1, 4, 4), (1, 4, 8))


def utilization() -> Utilization:
    """Of an encoder rank of 1 GFLOP/s and two ranks with the backbone; the projector trains."""
    family = Mock(projector_side="encoder")
    family.sample_flops = lambda tokens, grids, num_targets: ModuleFlops(
        encoder=1e6 * len(grids), projector=1e5 * len(grids), backbone=1e3 * tokens
    )
    peaks = Peaks(all=3e9, of={"encoder": 1e9, "backbone": 2e9})
    layout = RankLayout.decoupled(1, 2)
    return Utilization(layout, peaks, family, trained=("projector", "backbone"), adapted=())


def log_step(metrics: Metrics) -> None:
    """Log a step that is not finite."""
    metrics.step(
        StepPlan(step=0, kind="train"),
        StepDecision(
            action="skip", scale=0, loss=math.nan, grad_norm=math.inf, num_targets=1, seconds={}
        ),
        skipped=0,
        ages=[],
        timing=StepTiming(seconds=1.0, pool={"segments": [], "bytes_published": 0}),
    )


def test_a_log_on_a_full_disk_is_named(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, steps=1, rates=RATES, utilization=utilization())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            log_step(metrics)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_step_that_is_not_finite_is_json_when_standard_output_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    metrics = Metrics(tmp_path, steps=1, rates=RATES, utilization=utilization())
    log_step(metrics)
    metrics.close()
    [line] = read_log(tmp_path / "metrics.jsonl")
    assert (line["step"], line["loss"], line["grad_norm"]) == (0, None, None)
    assert json.dumps(line, allow_nan=False)


DECISION = StepDecision(
    action="apply",
    scale=1.0,
    loss=2.5,
    grad_norm=1.0,
    num_targets=8,
    seconds={"encoder": {"encode": 0.5}},
)
TIMING = StepTiming(seconds=1.0, pool={"segments": [], "bytes_published": 0})


def train(
    folder: Path, steps: int, *, decision: StepDecision = DECISION, groups: Any = (), **options: Any
) -> None:
    rates = LearningRates(OptimConfig(lr=1e-3), groups, steps=9)
    metrics = Metrics(folder, steps=9, rates=rates, utilization=utilization(), every=1, **options)
    for step in range(steps):
        plan = StepPlan(step=step, kind="train")
        metrics.step(plan, decision, skipped=0, ages=[], timing=TIMING)
    metrics.close()


def test_a_line_of_progress_counts_the_samples_left_out_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics(tmp_path, steps=9, rates=RATES, utilization=utilization(), every=1)
    for step, skipped in enumerate((0, 2, 1)):
        plan = StepPlan(step=step, kind="train", dropped=skipped)
        metrics.step(plan, DECISION, skipped=skipped, ages=[], timing=TIMING)
    first, _, last = capsys.readouterr().out.splitlines()
    # So many steps are done, as the name of a checkpoint says it; `step` counts from 0.
    assert first.startswith("after 1/9 steps  loss 2.5000  ")
    assert "samples" not in first
    assert last.endswith("  samples: 3 skipped, 3 dropped")


def test_training_continues_when_nobody_reads_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    # Leaving the block writes what is still buffered, as the end of a process does.
    with os.fdopen(theirs, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        train(tmp_path, 3)
    assert [line["step"] for line in read_log(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert capfd.readouterr().err.count("standard output: Broken pipe; progress is no longer") == 1


def test_trackers_get_every_step_and_are_closed(tmp_path: Path) -> None:
    tracker = Mock()
    train(tmp_path, 2, trackers=[tracker])
    assert [call.args[0] for call in tracker.log.call_args_list] == [0, 1]
    figures = tracker.log.call_args.args[1]
    assert [figures[f"train/{name}"] for name in ("loss", "grad_norm", "lr")] == [2.5, 1.0, 1e-3]
    tracker.close.assert_called_once_with()


def test_norms_of_two_steps_and_rates_of_groups_have_their_names(tmp_path: Path) -> None:
    late = replace(DECISION, norms={"backbone": (1, 3.0), "encoder": (0, math.nan)})
    tracker = Mock()
    group = ParameterGroup(match="model.visual.*", lr=2e-6)
    train(tmp_path, 1, decision=late, groups=[group], trackers=[tracker])
    [line] = read_log(tmp_path / "metrics.jsonl")
    assert "grad_norm" not in line
    assert line["grad_norms"] == {
        "backbone": {"step": 1, "norm": 3.0},
        "encoder": {"step": 0, "norm": None},
    }
    assert (line["lr"], line["group_lrs"]) == (1e-3, {"model.visual.*": 2e-6})
    assert tracker.log.call_args.args[1]["train/lr/model.visual.*"] == 2e-6


def test_the_timing_of_a_step_has_the_mfu_of_each_module_and_memory(tmp_path: Path) -> None:
    document = Document(sample=0, num_tokens=9, num_targets=1, image_tokens=4, grids=GRIDS)
    # 2 images of 1 + 3 x 0.1 MFLOP, and 30 MFLOP of the backbone.
    plan = StepPlan(step=0, kind="train", documents=(((document,),),), flops=32.6e6)
    # Encoder ranks of `bounded` may not have reported, and a system may not tell the memory.
    seconds = {"encoder": {}, "backbone": {"backbone": 0.25, "wait_receive": 0.75}}
    told = replace(DECISION, seconds=seconds, peak_bytes={"backbone": 7, "encoder": None})
    metrics = Metrics(tmp_path, steps=9, rates=RATES, utilization=utilization())
    metrics.step(plan, told, skipped=0, ages=[], timing=TIMING)
    [line] = read_log(tmp_path / "timing.jsonl")
    assert line["mfu"] == pytest.approx(32.6e6 / 3e9)
    encoder, backbone = (line["modules"][name] for name in ("encoder", "backbone"))
    assert encoder == pytest.approx(
        {"flops": 2.6e6, "peak_flops": 1e9, "mfu": 2.6e-3, "pass_mfu": None}
    )
    assert backbone == pytest.approx(
        {"flops": 30e6, "peak_flops": 2e9, "mfu": 0.015, "pass_mfu": 0.06}
    )
    assert line["memory_bytes"] == {"backbone.0": 7, "encoder.0": None}
