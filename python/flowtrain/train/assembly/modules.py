"""Builds the modules of a rank: weights, strategy, optimizer and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from flowtrain.config.layout import ModuleName
from flowtrain.config.load import dump
from flowtrain.config.schema import RunConfig
from flowtrain.models.compiled import compile_blocks, takes_attention
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.loading import load_weights
from flowtrain.models.recompute import recompute_blocks
from flowtrain.models.sides import Backbone
from flowtrain.train.assembly.parallel import parallel_for
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.trained import Trained


def build_module(name: ModuleName, config: RunConfig, context: RankContext) -> ModuleState:
    """A module with nothing of the other; a collective call of all ranks of the world.

    Args:
        name: Which module.
        config: The run.
        context: Connections and services of this rank.
    """
    family, device = context.family, context.world.device
    trained = Trained(config.trained_parts, config.optim)
    parallel = parallel_for(config, name, context.world)
    fill = None
    if parallel.divides and config.model.path is not None:
        # Each rank reads the shards alone that it holds, once it knows them.
        fill = partial(
            load_weights,
            folder=config.model.path,
            family=family,
            seed=config.train.seed,
            device=device,
            parameters_on=torch.device("cpu") if parallel.offloads else device,
        )
    module = family.build(
        name,
        weights=config.model.path,
        seed=config.train.seed,
        dtype=DTYPES[config.model.dtype],
        device=device if fill is None else torch.device("meta"),
        before_load=partial(trained.freeze, part_of=family.part_of, dtype=context.dtype),
    )
    recompute_blocks(family, module, config.parallel.of(name))
    if config.model.compile:
        dtype, level = DTYPES[config.model.pass_dtype], config.parallel.of(name).recompute
        compile_blocks(family, module, attention=takes_attention(device, dtype, level))
    if isinstance(module, Backbone):
        module.logit_bytes = config.train.logit_bytes
        if config.parallel_of(name).meets != "never":
            module.require_input_gradients()
    return ModuleState.build(
        module,
        trained,
        dtype=context.dtype,
        steps=config.schedule_steps,
        part_of=family.part_of,
        parallel=parallel,
        blocks=family.blocks(module),
        fill=fill,
    )


def begin_modules(
    config: RunConfig,
    context: RankContext,
    modules: Mapping[str, ModuleState],
    checkpoint: Path | None,
) -> Checkpoints:
    """Begin to train the modules of a rank, as `checkpoint` has them; return what saves them."""
    checkpoints = Checkpoints(
        config.run,
        config.checkpoint,
        context.world,
        modules,
        context.store,
        config_text=dump(config),
        adapters=bool(config.lora.adapters),
        keeps_best=config.eval.keep_best,
        alone=config.elastic,
    )
    if checkpoint is not None:
        checkpoints.load(checkpoint)
    for module in modules.values():
        module.begin()
    return checkpoints
