"""Builds a module of a rank: its weights, its strategy, and its optimizer."""

from __future__ import annotations

from functools import partial

import torch

from flowtrain.config.layout import ModuleName
from flowtrain.config.schema import RunConfig
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.loading import load_weights
from flowtrain.models.recompute import recompute_blocks
from flowtrain.models.sides import Backbone
from flowtrain.train.parallel.choose import parallel_for
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.trained import freeze_and_cast


def build_module(name: ModuleName, config: RunConfig, context: RankContext) -> ModuleState:
    """A module with nothing of the other; a collective call of all ranks of the world.

    Args:
        name: Which module.
        config: The run.
        context: Connections and services of this rank.
    """
    family, device = context.family, context.world.device
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
        before_load=partial(freeze_and_cast, config=config, part_of=family.part_of),
    )
    recompute_blocks(family, module, config.parallel.of(name))
    if isinstance(module, Backbone):
        module.logit_bytes = config.train.logit_bytes
        if config.parallel_of(name).meets != "never":
            module.require_input_gradients()
    return ModuleState.build(
        module,
        config,
        part_of=family.part_of,
        parallel=parallel,
        blocks=family.blocks(module),
        fill=fill,
    )
