"""Memory of FlowTrain's own models: what training allocates, beside what the cost model says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from model_sizes import SIZES

from cost.kept import kept_bytes
from flowtrain.config.optim import OptimConfig
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.cost.activations import layer_bytes, levels_of
from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import Counts
from flowtrain.cost.states import state_bytes
from flowtrain.models.family import Family
from flowtrain.models.packed_batch import PackedBatch, pack
from flowtrain.models.recompute import recompute_blocks
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import write_tiny_model
from flowtrain.train.state.master import MasterWeights
from flowtrain.train.state.optimizer import build_optimizer

OPTIMIZERS = (OptimConfig(), OptimConfig(name="sgd", momentum=0.9))

# Tokens of digits and letters, which no family takes for an image.
_BREAK, _TEXT = 40, 41

Documents = list[tuple[list[Grid], int]]
"""Grids of the images of each document of a row, and tokens of its text."""

_QWEN: Documents = [([(1, 24, 32)], 120), ([(1, 8, 8), (1, 12, 10)], 300), ([], 80)]
ROWS: dict[str, Documents] = {
    "qwen3_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "internvl": [([(9, 1, 1)], 120), ([(2, 1, 1), (4, 1, 1)], 300), ([], 80)],
    "llava": [([(1, 1, 1)] * 6, 120), ([(1, 1, 1)] * 8, 300), ([], 80)],
    "llava_onevision": [([(7, 32, 48)], 120), ([(1, 20, 30)] * 8, 300), ([], 80)],
}


LEVELS: dict[str, tuple[ModuleParallel, int | None]] = {
    "activations": (ModuleParallel(), None),
    "activations, full": (ModuleParallel(recompute="full"), None),
    "activations, selective": (ModuleParallel(recompute="selective"), None),
    "activations, full of 2": (ModuleParallel(recompute="full", recompute_layers=2), None),
    "activations, head in chunks": (ModuleParallel(), 1 << 16),
}
"""Recomputation of both modules, and the limit of the logits."""


def memory_rows(kind: str, freezings: tuple[tuple[str, ...], ...]) -> Iterator[dict[str, Any]]:
    """States and activations for each dtype and choice of trained parts."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(Path(folder), SIZES["42M"], family=kind)
        family = family_for(Path(folder))
        row, pixels, counts = packed_row(family, ROWS[kind])
        for dtype in (torch.float32, torch.bfloat16):
            for trained in freezings:
                case = {"family": kind, "dtype": str(dtype)[6:], "trained": trained}
                for what, allocated, ours in (
                    *activations(family, row, pixels.to(dtype), counts, trained),
                    *states(family, built(family, "full", torch.float32, trained), trained, dtype),
                ):
                    error = abs(ours / allocated - 1)
                    yield {
                        **case,
                        "what": what,
                        "allocated": allocated,
                        "ours": ours,
                        "error": error,
                    }


def built(family: Family, side: Any, dtype: torch.dtype, trained: tuple[str, ...]) -> Any:
    """A side of the model, or all of it, some of whose parts train."""
    model = family.build(side, weights=None, seed=0, dtype=dtype, device=torch.device("cpu"))
    for name, parameter in model.named_parameters():
        if family.part_of(name) not in trained:
            parameter.requires_grad_(False)
    return model


def activations(
    family: Family,
    row: PackedBatch,
    pixels: torch.Tensor,
    counts: Counts,
    trained: tuple[str, ...],
) -> Iterator[tuple[str, int, float]]:
    """Bytes kept with each level of recomputation, beside those of the cost model."""
    for name, (level, logit_bytes) in LEVELS.items():
        sides = [built(family, side, pixels.dtype, trained) for side in get_args(Side)]
        encoder, backbone = sides
        for side in sides:
            recompute_blocks(family, side, level)
        backbone.logit_bytes = logit_bytes

        def forward() -> Any:
            # Tensors from before the pass are not counted.
            given = replace(row, input_ids=row.input_ids * 1)
            return backbone(given, encoder(pixels * 1, row.grids)).loss_sum  # noqa: B023

        ours = layer_bytes(
            family.layers,
            counts,
            trained,
            itemsize=pixels.dtype.itemsize,
            levels=levels_of(family.layers, ParallelConfig(encoder=level, backbone=level)),
            # Documents of the rows have several lengths.
            joined=True,
            logit_bytes=logit_bytes,
        )
        yield name, kept_bytes(forward), sum(layer.kept for layer in ours)


def states(
    family: Family, model: Any, trained: tuple[str, ...], dtype: torch.dtype
) -> Iterator[tuple[str, int, int]]:
    """Weights, masters, gradients and moments after a step on gradients of ones.

    Args:
        family: The family.
        model: Its model, as it is stored.
        trained: Parts of it that train.
        dtype: Dtype of the passes.
    """
    sizes = family.parameter_sizes()
    trainable = family.trainable_sizes().items()
    training = sum(size for name, size in trainable if family.part_of(name) in trained)
    parameters = list(model.parameters())
    steps = [p for p in parameters if p.requires_grad]
    stored = steps[0].dtype
    for parameter in parameters:
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    for optim in OPTIMIZERS:
        for parameter in steps:
            parameter.grad, parameter.data = None, parameter.data.to(stored)
        master = MasterWeights(steps, dtype)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        optimizer = build_optimizer(named, optim)
        for parameter in steps:
            parameter.grad = torch.ones_like(parameter, dtype=parameter.grad_dtype)
        with master.in_place():
            optimizer.step()
        held = [*parameters, *master._stored, *(p.grad for p in steps)]
        for state in optimizer.state.values():
            held += [value for value in state.values() if isinstance(value, torch.Tensor)]
        storages = [x.untyped_storage() for x in held if x is not None]
        allocated = sum({x.data_ptr(): x.nbytes() for x in storages}.values())
        ours = state_bytes(
            sum(sizes.values()),
            training,
            optim,
            itemsize=dtype.itemsize,
            stored_itemsize=stored.itemsize,
        )
        yield f"states, {optim.name}", allocated, ours.total


def packed_row(family: Family, documents: Documents) -> tuple[PackedBatch, torch.Tensor, Counts]:
    """A row of documents with noise as pixels; all of its text is trained."""
    images = family.image_processor()
    ids: list[int] = []
    lengths, counts, pixels = [], [], []
    for grids, text in documents:
        tokens = []
        for grid in grids:
            # Between two images stands a token, by which Qwen-VL tells them apart.
            tokens += [_BREAK, *[family.image_id] * images.num_tokens(grid)]
            pixels.append(torch.randn(images.pixel_shape(grid)))
        tokens += [_TEXT] * text
        counts.append(family.counts(len(tokens), grids, num_targets=0))
        lengths.append(len(tokens))
        ids += tokens
    input_ids = torch.tensor(ids)
    labels = input_ids.masked_fill(input_ids != _TEXT, -100)
    grids = [grid for of_document, _ in documents for grid in of_document]
    row = pack(
        input_ids=input_ids,
        labels=labels,
        position_ids=family.position_ids(
            (input_ids == family.image_id).long(), grids, lengths, [0.0] * len(grids)
        ),
        grids=grids,
        doc_lengths=lengths,
        visual_ids=family.visual_ids,
        device=torch.device("cpu"),
    )
    ends = torch.tensor(lengths).cumsum(0)[:-1]
    first = torch.cat([torch.zeros(1, dtype=torch.long), ends])
    targets = int((labels != -100).sum()) - int((labels[first] != -100).sum())
    total = Counts(*map(sum, zip(*counts, strict=True)))
    return row, torch.cat(pixels), total._replace(targets=targets)
