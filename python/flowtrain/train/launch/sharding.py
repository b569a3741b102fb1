"""Whether a run's modules can be sharded, and have states that it can keep in host memory."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FSDPModule

from flowtrain.config.checks import require
from flowtrain.config.layout import MODULES
from flowtrain.config.schema import RunConfig
from flowtrain.train.launch.signals import say


def check_sharding(config: RunConfig) -> None:
    """Refuse to shard a module over several ranks with a torch that cannot.

    Args:
        config: A run with its layout.

    Raises:
        ConfigError: This torch has no way to reduce a gradient that only some ranks have.
    """
    sharded = [
        f"parallel.{module}.sharding={config.parallel_of(module).sharding}"
        for module in MODULES
        if config.parallel_of(module).sharding != "replicated"
        and config.flow.chosen.ranks_of(module) > 1
    ]
    require(
        not sharded or hasattr(FSDPModule, "set_reduce_scatter_unused_params"),
        f"{', '.join(sharded)}: torch {torch.__version__} cannot reduce gradients that only some "
        "ranks have, such as those of a step in which one rank has no image; install torch>=2.13, "
        "or set sharding to replicated",
    )


def check_offload(config: RunConfig) -> None:
    """Refuse `optim.offload` of which no module has any use; say which ones it leaves out.

    Args:
        config: A run with its layout.

    Raises:
        ConfigError: No module that trains is sharded.
    """
    if not config.optim.offload:
        return
    trained = [module for module in MODULES if module in config.trained_modules]
    left_out = [module for module in trained if not config.offloads(module)]
    fields = ", ".join(f"parallel.{module}.sharding=replicated" for module in left_out)
    require(
        left_out != trained,
        f"optim.offload=true with {fields}: only ranks that divide their states keep them in host "
        "memory, as each would step all of them there otherwise; set sharding to optimizer or "
        "full, also on one rank, or optim.offload to false",
    )
    if left_out:
        say(f"optim.offload leaves the states of the {left_out[0]} on its device, with {fields}")
    if config.model.device == "cpu":
        say("optim.offload changes nothing on a CPU: all states are in host memory already")
