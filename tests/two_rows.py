"""Losses and gradients of two packed rows of a tiny model, by its two sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import torch
from cost.memory import packed_row
from torch.distributed.fsdp import fully_shard

from flowtrain.config.parallel import ModuleParallel
from flowtrain.cost.flops import Side
from flowtrain.models.compiled import compile_blocks
from flowtrain.models.family import Family
from flowtrain.models.packed_batch import PackedBatch
from flowtrain.models.recompute import recompute_blocks
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model


def loss_and_gradients(
    family: Family,
    rows: list[tuple[PackedBatch, torch.Tensor]],
    parallel: ModuleParallel,
    dtype: torch.dtype,
    *,
    shards: bool = False,
    backend: str | None = None,
    attention: bool = False,
) -> dict[str, torch.Tensor]:
    """Of two rows, both of whose forward passes are before the backward passes.

    With `shards`, each side is sharded behind it, and the rows run one after the other. Blocks are
    compiled with `backend`, if it is given, and their attention with them, if `attention` says so.
    """
    options: dict[str, Any] = {"weights": None, "seed": 1, "dtype": dtype}
    options["device"] = torch.device("cpu")
    sides = encoder, backbone = [family.build(s, **options) for s in get_args(Side)]
    names = [[name for name, _ in side.named_parameters()] for side in sides]
    for side in sides:
        recompute_blocks(family, side, parallel)
        if backend is not None:
            compile_blocks(family, side, attention=attention, backend=backend)
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
