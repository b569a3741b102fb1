"""Figures of `flowtrain bench train` from given runs, its data, and the order of `grouped`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowtrain.bench.train.compare import idle, loss_differences, ratio
from flowtrain.bench.train.plain_data import shares
from flowtrain.bench.train.runs import Run
from flowtrain.bench.train.synthetic import write_workload
from flowtrain.config.data import DataConfig
from flowtrain.data.samples import SampleReader
from flowtrain.models.tiny import SMALLEST
from flowtrain.workloads import preset


def run(*seconds: float, **fields: Any) -> Run:
    steps = len(seconds)
    given = {"tokens": [100] * steps, "losses": [1.0] * steps, **fields}
    return Run(warmup=1, seconds=list(seconds), startup_s=0.0, **given)


def test_idle_time_is_the_wait_for_the_slowest_rank_after_the_warm_up() -> None:
    # Waits of the two ranks: 1 and 0 s, then 0 and 2 s, of 10 s.
    busy = run(9, 4, 6, busy_s=[[1.0, 8.0], [2.0, 3.0], [5.0, 3.0]])
    assert busy.idle_share == pytest.approx(0.5 * (1 + 2) / 10)
    found = idle({"packed_busy": [busy], "packed": [run(9, 5, 5)], "flow": [run(9, 4, 5)]})
    assert found == pytest.approx({"packed_idle": 0.15, "idle_recovered": 0.1 / 0.15})


def test_rates_leave_out_the_warm_up_and_are_compared_round_by_round() -> None:
    slow, fast = run(1, 10, 10), run(100, 1, 1)
    assert fast.tokens_per_s == pytest.approx(100)
    # In the second round the machine was ten times slower.
    assert ratio([fast, slow], [run(1, 2, 2), run(1, 20, 20)]) == pytest.approx(2)


def test_runs_of_different_samples_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="same samples"):
        loss_differences(run(1, 1), run(1, 1, tokens=[100, 99]), "padded")


class _Lengths:
    """Samples of random lengths."""

    def __init__(self, count: int) -> None:
        self._lengths = torch.randint(1, 1000, (count,)).tolist()

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, line: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.empty(self._lengths[line])}


def test_grouped_batches_hold_every_sample_once_and_similar_lengths() -> None:
    samples: Any = _Lengths(24 * 8)
    given = argparse.Namespace(variant="grouped", steps=24, global_batch=8, batch_size=2, seed=0)
    ranks = [shares(given, samples, rank, 2) for rank in range(2)]
    assert [len(step) for rank in ranks for step in rank] == [4] * 48
    assert sorted(line for rank in ranks for step in rank for line in step) == list(range(24 * 8))
    lengths = [[len(samples[line]["input_ids"]) for line in step] for step in ranks[1]]
    # In file order the mean spread of four random lengths is 600.
    assert sum(max(step) - min(step) for step in lengths) / 24 < 200


def test_written_samples_have_the_sizes_of_the_preset(tmp_path: Path) -> None:
    write_workload(
        tmp_path, "video", samples=64, seed=3, scale=1 / 16, max_tokens=1400, sizes=SMALLEST
    )
    wanted = preset("video", 64, seed=3)
    reader = SampleReader(tmp_path / "model", DataConfig(path=tmp_path / "train.jsonl"), 1400)
    found = [reader.meta(number) for number in range(64)]
    visual = np.array([sum(sample.image_lengths) for sample in found])
    assert np.abs(visual * 16 / wanted.visual_tokens - 1).mean() < 0.1
    tokens = np.array([sample.num_tokens for sample in found])
    assert abs(tokens.sum() * 16 / wanted.tokens.sum() - 1) < 0.1
    assert max(math.prod(grid) // 4 for sample in found for grid in sample.grids) <= 64
    with pytest.raises(ValueError, match="lower the scale"):
        write_workload(tmp_path, "video", samples=64, seed=3, scale=1 / 16, max_tokens=500)
