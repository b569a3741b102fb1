"""A trained model: both modules of a checkpoint in one Hugging Face folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from flowtrain.config.schema import RunConfig
from flowtrain.cost.flops import Side
from flowtrain.models.adapters import ADAPTER, adapted_layers, adapter_names, merge
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.export import save_adapters, save_final
from flowtrain.models.family import Family
from flowtrain.models.images import PixelLimits
from flowtrain.models.pixel_limits import write_pixel_limits
from flowtrain.models.registry import family_for
from flowtrain.train.state.atomic import PART, commit
from flowtrain.train.state.checkpoint import load_part
from flowtrain.train.state.resume import check_copied
from flowtrain.train.state.trained import Trained

FINAL = "final"
"""Folder of the trained model, in that of the run."""


def write_final(config: RunConfig, checkpoint: Path) -> dict[str, float]:
    """Write `RUN/final` from a checkpoint; see `write_model`."""
    return write_model(config, checkpoint, config.run / FINAL)


def write_model(
    config: RunConfig,
    checkpoint: Path,
    folder: Path,
    *,
    merged: bool = False,
    dtype: torch.dtype | None = None,
) -> dict[str, float]:
    """Write the model of a checkpoint, completely or not at all; an older one is replaced.

    Of a run with adapters only these are written, and what trains beside them, as PEFT does.

    Its image processor has the `data.min_pixels` and `data.max_pixels` that the run sets; a line on
    standard error says so.

    Args:
        config: The run.
        checkpoint: A valid checkpoint of the run.
        folder: Folder to write. Hugging Face's `from_pretrained` can load it without FlowTrain.
        merged: Write the whole model, with adapters merged into its weights.
        dtype: Dtype of the files; None for `model.dtype`.

    Returns:
        Weight change of each module: norm of the difference to the start, relative to the start.
        An adapter changes the weight of its layer by what merging adds.

    Raises:
        ConfigError: Files of the model have changed since the run began.
        CheckpointError: The checkpoint cannot be read.
        OSError: The folder cannot be written; the message names it.
    """
    check_copied(config, checkpoint)
    family = family_for(config.model.folder, projector_side=config.projector_side, lora=config.lora)
    model = family.build(
        "full",
        weights=config.model.path,
        seed=config.train.seed,
        dtype=DTYPES[config.model.dtype],
        device=torch.device("cpu"),
    )
    Trained(config.trained_parts, config.optim).freeze(model, part_of=family.part_of)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    before = {name: value.detach().clone() for name, value in trained.items()}
    for module in ("encoder", "backbone"):
        load_part(checkpoint, module, model, family)
    change = _weight_change(model, before, family)
    part = folder.with_name(folder.name + PART)
    if part.exists():
        shutil.rmtree(part)
    limits = PixelLimits(min_pixels=config.data.min_pixels, max_pixels=config.data.max_pixels)
    try:
        whole = merged or not config.lora.adapters
        if whole:
            merge(model)  # In the dtype in which the adapters are stored.
        if dtype is not None:
            model.to(dtype)
        if not whole:
            save_adapters(part, config.model.folder, model)
        else:
            save_final(part, config.model.folder, cast(PreTrainedModel, model))
        changed = write_pixel_limits(part, limits)
        check_copied(config, checkpoint)  # Nothing changed while the files were copied.
        commit(part, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)  # On a full disk, it has the space that is missing.
        raise OSError(f"{folder}: {error}") from error
    if changed is not None:
        print(f"flowtrain: {folder}: {changed}", file=sys.stderr)
    return change


def _weight_change(
    model: torch.nn.Module, before: Mapping[str, torch.Tensor], family: Family
) -> dict[str, float]:
    """Change of the weights of each module, relative to their norm at the start.

    Args:
        model: The trained model.
        before: Its parameters that train, at the start.
        family: Its family.
    """
    moved: dict[Side, float] = {"encoder": 0.0, "backbone": 0.0}
    start = dict(moved)
    for name, layer in adapted_layers(model):
        moved[family.side_of(name)] += _square(layer.get_delta_weight(ADAPTER))
    of_adapters = adapter_names(model)
    for name, value in model.named_parameters():
        if name not in of_adapters:
            side, was = family.side_of(name), before.get(name)
            start[side] += _square(value if was is None else was)
            moved[side] += 0.0 if was is None else _square(value - was)
    return {f"{side}_weight_change": (moved[side] / start[side]) ** 0.5 for side in moved}


def _square(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values.detach(), dtype=torch.float64)) ** 2
