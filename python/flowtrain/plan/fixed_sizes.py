"""Whether the sizes that a user has fixed divide what they share out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowtrain.config.checks import require
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.fixed import Fix
from flowtrain.plan.search.candidates import divides_heads
from flowtrain.plan.space import GpuPool, Space

_RANKS = ("tp", "cp", "pp", "dp")


def check_sizes(
    space: Space, model: ModelDescription, pools: Sequence[GpuPool], *, batch: int
) -> None:
    """Check the sizes that are fixed for a space.

    Args:
        space: The space.
        model: The model.
        pools: The GPUs.
        batch: Samples of a step.

    Raises:
        ConfigError: No layout can have a size; the message says what it must divide.
    """
    gpus = max(pool.gpus for pool in pools)
    blocks = sum(layer.part == "backbone" and layer.takes is not None for layer in model.layers)
    fixes = [fix for fix in space.fixed if isinstance(fix, Fix)]
    for fix in fixes:
        if not isinstance(fix.value, int):
            continue
        where, size = f"--fix {fix}", fix.value
        if fix.field == "tp":
            _check_tp(where, fix.module, size, space, model, pools)
        if fix.field == "ep" and size > 1:
            experts = model.num_experts
            require(experts > 0, f"{where}: {model.name} has no experts; leave it out")
            require(not experts % size, f"{where}: it must divide the {experts} experts of a layer")
        if fix.field == "pp":
            require(
                size <= blocks,
                f"{where}: the backbone has {blocks} blocks, and a stage at least one of them",
            )
        if fix.field == "dp":
            require(
                size <= batch,
                f"{where}: a step has train.global_batch={batch} samples; give at most so many",
            )
        if fix.field == "shard_ranks":
            require(size <= gpus, f"{where}: there are {gpus} GPUs; give at most so many")
    _check_together(fixes, gpus)


def _check_together(fixes: Sequence[Fix], gpus: int) -> None:
    for module in dict.fromkeys(fix.module for fix in fixes):
        sizes = [fix for fix in fixes if fix.module == module and fix.field in _RANKS]
        where = " ".join(f"--fix {fix}" for fix in sizes)
        ranks = math.prod(int(fix.value) for fix in sizes)
        require(ranks <= gpus, f"{where}: that is {ranks} GPUs at least, and there are {gpus}")
        values = {fix.field: fix.value for fix in fixes if fix.module == module}
        shard, dp = values.get("shard_ranks"), values.get("dp")
        require(
            shard is None or dp is None or not int(dp) % int(shard),
            f"--fix {module}.shard_ranks={shard} --fix {module}.dp={dp}: ranks that divide one "
            "copy must divide the replicas",
        )
        require(
            shard is None or values.get("sharding") != "replicated",
            f"--fix {module}.shard_ranks={shard} --fix {module}.sharding=replicated: nothing is "
            "divided; give sharding=optimizer or sharding=full",
        )
        require(
            values.get("sharding") != "full" or values.get("pp", 1) == 1,
            f"--fix {module}.sharding=full --fix {module}.pp={values.get('pp')}: full sharding has "
            "no stages; give sharding=optimizer, or pp=1",
        )


def _check_tp(
    where: str,
    module: str,
    size: int,
    space: Space,
    model: ModelDescription,
    pools: Sequence[GpuPool],
) -> None:
    modules = [module]
    if space.modes == ("prefix",):
        # All modules have one layout.
        modules = [*(encoder.name for encoder in model.encoders), "backbone"]
    nodes = sorted({pool.topology.devices_per_node for pool in pools})
    fitting = [
        tp
        for tp in range(1, nodes[-1] + 1)
        if any(
            pool.topology.devices_per_node % tp == 0
            and all(divides_heads(model, name, tp, pool, space.runtime) for name in modules)
            for pool in pools
        )
    ]
    heads = {encoder.name: str(encoder.heads) for encoder in model.encoders}
    heads["backbone"] = f"{model.heads} query and {model.kv_heads} key-value"
    shared = [f"the {heads[name]} heads of {name}" for name in modules]
    shared.append(f"the {' or '.join(map(str, nodes))} GPUs of a node")
    require(
        size in fitting,
        f"{where}: it must divide {' and '.join(shared)}: give {', '.join(map(str, fitting))}",
    )
