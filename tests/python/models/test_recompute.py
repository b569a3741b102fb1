"""Recomputation of blocks: the same numbers to the last bit, and its switches."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from cost.memory import packed_row
from support import one_thread
from torch.distributed.fsdp import fully_shard

from flowtrain.config.checks import ConfigError
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.cost.flops import Side
from flowtrain.models.family import Family, PackedBatch
from flowtrain.models.recompute import check_recompute, recompute_blocks
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, TINY, write_tiny_model

LEVELS = [
    ModuleParallel(recompute="full"),
    ModuleParallel(recompute="selective"),
    ModuleParallel(recompute="full", recompute_layers=2),
]


def loss_and_gradients(
    family: Family,
    rows: list[tuple[PackedBatch, torch.Tensor]],
    parallel: ModuleParallel,
    dtype: torch.dtype,
    *,
    shards: bool = False,
) -> dict[str, torch.Tensor]:
    """Of two rows, both of whose forward passes are before the backward passes.

    With `shards`, each side is sharded behind it, and the rows run one after the other.
    """
    options: dict[str, Any] = {"weights": None, "seed": 1, "dtype": dtype}
    options["device"] = torch.device("cpu")
    sides = encoder, backbone = [family.build(s, **options) for s in get_args(Side)]
    names = [[name for name, _ in side.named_parameters()] for side in sides]
    for side in sides:
        recompute_blocks(family, side, parallel)
        if shards:
            for block in family.blocks(side):
                fully_shard(block)
            fully_shard(side)
    torch.manual_seed(3)
    losses = []
    for batch, pixels in rows:
        features = encoder(pixels.to(dtype), batch.grids)
        losses.append(backbone(batch, features).loss_sum)
        if shards:
            losses[-1].backward()
    for loss in [] if shards else losses:
        loss.backward()
    assert names == [[name for name, _ in side.named_parameters()] for side in sides]
    gradients = {n: p.grad for side in sides for n, p in side.named_parameters()}
    return {
        "losses": torch.stack(losses).detach(),
        **{n: getattr(g, "_local_tensor", g) for n, g in gradients.items() if g is not None},
    }


def family_of(folder: Path, kind: str, *, dropout: float = 0.0) -> Family:
    write_tiny_model(folder, SMALLEST, family=kind)
    if dropout:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for part in ("text_config", "vision_config"):
            config[part]["attention_dropout"] = dropout
        path.write_text(json.dumps(config))
    return family_for(folder)


def rows_of(family: Family) -> list[tuple[PackedBatch, torch.Tensor]]:
    torch.manual_seed(2)
    images = family.image_processor()
    first, second = (images.grid(*size, num_images=1) for size in ((16, 24), (8, 8)))
    documents = ([([first], 9), ([second, first], 13), ([], 7)], [([second], 20), ([], 11)])
    return [packed_row(family, row)[:2] for row in documents]


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
