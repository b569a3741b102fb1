"""The strategy of a module, as the configuration names it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from flowtrain.config.layout import ModuleName
from flowtrain.config.schema import RunConfig
from flowtrain.models.dtypes import DTYPES
from flowtrain.train.control.world import World
from flowtrain.train.parallel.interface import Parallel
from flowtrain.train.parallel.replicated import Replicated
from flowtrain.train.parallel.sharded import Sharded


def parallel_for(config: RunConfig, module: ModuleName, world: World) -> Parallel:
    """The strategy of a module; a collective call of all ranks of the world."""
    chosen = config.parallel_of(module)
    reduce_dtype = DTYPES[config.optim.reduce_dtype or config.model.dtype]
    if chosen.sharding == "replicated":
        return Replicated(world, reduce_dtype=reduce_dtype)
    offload = config.offloads(module)
    return Sharded(
        _mesh(
            world,
            chosen.shard_ranks or world.size,
            timeout_s=config.flow.timeout_s,
            # NCCL sums nothing in host memory, and the norm is summed where the gradients are.
            backend="cpu:gloo,cuda:nccl" if offload and world.reduce_on.type == "cuda" else None,
        ),
        once=chosen.meets == "once",
        alternates=module == "backbone",
        compute_dtype=DTYPES[config.model.pass_dtype],
        reduce_dtype=reduce_dtype,
        offload=offload,
    )


def _mesh(world: World, shard_ranks: int, *, timeout_s: float, backend: str | None) -> DeviceMesh:
    """The ranks of a world as replicas that each divide one copy of the states.

    Groups of their own time out if ranks of one pass wait for each other: within a pass no rank
    waits for anything else, and the heartbeat takes a rank in a pass for one that works.
    """
    options: Any = {"timeout": timedelta(seconds=timeout_s), "backend": backend}
    device = world.device.type
    if shard_ranks == world.size:
        group = dist.new_group(**options) if world.makes_groups else dist.group.WORLD
        assert group is not None
        return DeviceMesh.from_group(group, device, mesh_dim_names=("shard",))
    mesh = torch.arange(world.size).view(-1, shard_ranks)
    replicate, _ = dist.new_subgroups_by_enumeration(mesh.T.tolist(), **options)
    shard, _ = dist.new_subgroups_by_enumeration(mesh.tolist(), **options)
    return DeviceMesh.from_group(
        [replicate, shard], device, mesh=mesh, mesh_dim_names=("replicate", "shard")
    )
