"""Recomputation of blocks: the same numbers to the last bit, and its switches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support import one_thread
from two_rows import family_of, loss_and_gradients, rows_of

from flowtrain.config.checks import ConfigError
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.models.recompute import check_recompute
from flowtrain.models.tiny import TINY

LEVELS = [
    ModuleParallel(recompute="full"),
    ModuleParallel(recompute="selective"),
    ModuleParallel(recompute="full", recompute_layers=2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", TINY)
def test_recomputation_changes_no_bit(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    family = family_of(tmp_path, kind)
    rows = rows_of(family)
    with one_thread():  # In float32, operators have kernels of the core.
        plain = loss_and_gradients(family, rows, ModuleParallel(), dtype)
        for level in LEVELS:
            again = loss_and_gradients(family, rows, level, dtype)
            assert again.keys() == plain.keys()
            for name, value in plain.items():
                assert torch.equal(again[name], value), (level, name)


def test_it_can_be_sharded(tmp_path: Path) -> None:
    family = family_of(tmp_path, "qwen3_vl")
    rows = rows_of(family)
    plain = loss_and_gradients(family, rows, ModuleParallel(), torch.float64)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for level in LEVELS:
            again = loss_and_gradients(family, rows, level, torch.float64, shards=True)
            assert again.keys() == plain.keys()
            for name, value in plain.items():
                torch.testing.assert_close(again[name], value, rtol=1e-12, atol=1e-15)
    finally:
        dist.destroy_process_group()


def test_recomputation_draws_the_same_dropout_masks(tmp_path: Path) -> None:
    family = family_of(tmp_path, "llava", dropout=0.3)
    rows = rows_of(family)
    plain = loss_and_gradients(family, rows, ModuleParallel(), torch.float32)
    for level in LEVELS:
        again = loss_and_gradients(family, rows, level, torch.float32)
        for name, value in plain.items():
            assert torch.equal(again[name], value), (level, name)


def test_more_recomputed_layers_than_the_model_has_are_refused(tmp_path: Path) -> None:
    family = family_of(tmp_path, "llava")
    # The tower has three layers, and the loss depends on the first two.
    for side, layers in (("encoder", 2), ("backbone", 3)):
        for asked in (layers, layers + 1):
            module = ModuleParallel(recompute="full", recompute_layers=asked)
            parallel = dataclasses.replace(ParallelConfig(), **{side: module})
            if asked == layers:
                check_recompute(parallel, family)
                continue
            message = rf"parallel\.{side}\.recompute_layers={asked}: .* {layers} layers; give"
            with pytest.raises(ConfigError, match=message):
                check_recompute(parallel, family)
