"""A trained model: both modules of a checkpoint in one Hugging Face folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from flowtrain.config.schema import RunConfig
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.export import save_final
from flowtrain.models.images import PixelLimits
from flowtrain.models.pixel_limits import write_pixel_limits
from flowtrain.models.registry import family_for
from flowtrain.train.state.atomic import PART, commit
from flowtrain.train.state.checkpoint import load_part
from flowtrain.train.state.resume import check_copied


def write_final(config: RunConfig, checkpoint: Path) -> dict[str, float]:
    """Write `RUN/final` from a checkpoint; see `write_model`."""
    return write_model(config, checkpoint, config.run / "final")


def write_model(config: RunConfig, checkpoint: Path, folder: Path) -> dict[str, float]:
    """Write the model of a checkpoint, completely or not at all; an older one is replaced.

    Its image processor has the `data.min_pixels` and `data.max_pixels` that the run sets; a line on
    standard error says so.

    Args:
        config: The run.
        checkpoint: A valid checkpoint of the run.
        folder: Folder to write. Hugging Face's `from_pretrained` can load it without FlowTrain.

    Returns:
        Weight change of each module: norm of the difference to the start, relative to the start.

    Raises:
        ConfigError: Files of the model have changed since the run began.
        CheckpointError: The checkpoint cannot be read.
        OSError: The folder cannot be written; the message names it.
    """
    check_copied(config, checkpoint)
    family = family_for(config.model.folder, projector_side=config.projector_side)
    model = family.build(
        "full",
        weights=config.model.path,
        seed=config.train.seed,
        dtype=DTYPES[config.model.dtype],
        device=torch.device("cpu"),
    )
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for module in ("encoder", "backbone"):
        load_part(checkpoint, module, model, family)
    part = folder.with_name(folder.name + PART)
    if part.exists():
        shutil.rmtree(part)
    limits = PixelLimits(min_pixels=config.data.min_pixels, max_pixels=config.data.max_pixels)
    try:
        save_final(part, config.model.folder, cast(PreTrainedModel, model))
        changed = write_pixel_limits(part, limits)
        check_copied(config, checkpoint)  # Nothing changed while the files were copied.
        commit(part, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)  # On a full disk, it has the space that is missing.
        raise OSError(f"{folder}: {error}") from error
    if changed is not None:
        print(f"flowtrain: {folder}: {changed}", file=sys.stderr)
    change = {}
    for module in ("encoder", "backbone"):
        moved = start = 0.0
        for name, value in model.named_parameters():
            if family.side_of(name) == module:
                moved += float((value.detach() - before[name]).double().square().sum())
                start += float(before[name].double().square().sum())
        change[f"{module}_weight_change"] = (moved / start) ** 0.5
    return change
