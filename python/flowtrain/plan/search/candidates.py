"""Layouts that a module may have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from flowtrain.config.parallel import Sharding
from flowtrain.cost.communication import Mesh
from flowtrain.cost.timing import DataSheetTiming
from flowtrain.plan.describe import Encoder, ModelDescription
from flowtrain.plan.padding import MOST_PADDING, padding
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.row import Row
from flowtrain.plan.runtime import Runtime
from flowtrain.plan.space import GpuPool, Rules, Space
from flowtrain.plan.work import Work


def backbone_shapes(
    model: ModelDescription,
    space: Space,
    pool: GpuPool,
    *,
    gpus: int,
    blocks: int,
    modules: tuple[str, ...],
) -> Iterator[Shape]:
    """Meshes of the backbone whose sizes divide what they share out.

    Args:
        model: The model.
        space: Sizes to try.
        pool: The GPUs.
        gpus: How many of them are used.
        blocks: Blocks of the decoder; stages have at least one each.
        modules: Modules that have the mesh: the backbone, and perhaps encoders.
    """
    node = pool.topology.devices_per_node
    for tp, cp, pp in itertools.product(space.tp, space.cp, space.pp):
        if gpus % (tp * cp * pp) or tp > node or node % tp or pp > blocks:
            continue
        if not all(divides_heads(model, module, tp, pool, space.runtime) for module in modules):
            continue
        dp = gpus // (tp * cp * pp)
        for ep in space.ep if model.num_experts else (1,):
            if cp * dp % ep or (ep > 1 and model.num_experts % ep):
                continue
            for sharding in space.sharding:
                if cp * dp == 1 and not space.offload and sharding != space.sharding[0]:
                    continue  # One replica has nothing to share out.
                if sharding == "full" and pp > 1:
                    continue
                mesh = Mesh(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep)
                if space.allows(mesh, sharding, modules=modules):
                    yield from _divided(mesh, sharding, space, modules)


def divides_heads(
    model: ModelDescription, module: str, tp: int, pool: GpuPool, runtime: Runtime
) -> bool:
    """Whether tensor parallelism of a size divides the heads of a module.

    More ranks than key-value heads have copies of these.
    """
    if module == "backbone":
        copies = runtime.copies_kv and not tp % model.kv_heads
        return not model.heads % tp and (copies or not model.kv_heads % tp)
    own = (encoder for encoder in model.encoders if encoder.name == module)
    return all(_divides(encoder, tp, pool, runtime) for encoder in own)


def _divides(encoder: Encoder, tp: int, pool: GpuPool, runtime: Runtime) -> bool:
    """Whether tensor parallelism of a size divides the heads of a tower, or a few more.

    Measured times are those of the tower as it is.
    """
    pads = runtime.pads_towers and isinstance(pool.timing, DataSheetTiming)
    most = MOST_PADDING if pads else 1
    return padding(encoder.heads, tp) <= most


def encoder_shapes(
    encoder: Encoder, space: Space, pool: GpuPool, *, gpus: int | None = None
) -> Iterator[Shape]:
    """Meshes of an encoder on its own.

    Args:
        encoder: The encoder.
        space: Sizes to try.
        pool: GPUs that may be used.
        gpus: The number that is used; None tries all that it may have beside other modules.
    """
    node = pool.topology.devices_per_node
    budgets = pool.shares(every=space.every_budget) if gpus is None else [gpus]
    for count in budgets:
        for tp in space.tp:
            divides = _divides(encoder, tp, pool, space.runtime)
            if count % tp or tp > node or node % tp or not divides:
                continue
            for sharding in space.sharding:
                mesh = Mesh(tp=tp, dp=count // tp)
                if count == tp and not space.offload and sharding != space.sharding[0]:
                    continue
                names = (encoder.name,)
                if space.allows(mesh, sharding, modules=names):
                    yield from _divided(mesh, sharding, space, names)


def _divided(
    mesh: Mesh, sharding: Sharding, space: Space, modules: tuple[str, ...]
) -> Iterator[Shape]:
    """The mesh, whose replicas divide copies among a number of them if that divides them."""
    shard_ranks = space.shard_ranks_of(modules)
    offload = space.offload and sharding != "replicated"
    if shard_ranks is None or shard_ranks == mesh.dp == mesh.replicas.size:
        yield Shape(mesh, sharding, offload=offload)
    elif sharding != "replicated" and mesh.cp == mesh.ep == 1 and not mesh.dp % shard_ranks:
        yield Shape(mesh, sharding, shard_ranks, offload)


def row_of(model: ModelDescription, work: Work, rules: Rules, *, parts: int) -> Row | None:
    """What a replica's microbatch has, or None if samples are too few or its tokens too many.

    Args:
        model: The model.
        work: The step.
        rules: Constants of the prices.
        parts: Microbatches of all replicas.
    """
    if parts > work.batch:
        return None
    share = work.share
    tokens = work.tokens / parts
    most = work.cap(tokens, rules.headroom)
    if most is None:
        return None
    modalities = [encoder.modality for encoder in model.encoders]
    return Row(
        tokens,
        tuple(share.encoded[each].tokens / share.tokens * tokens for each in modalities),
        most,
        tuple(work.most_of(most, each) for each in modalities),
        work.most_of(most, None),
    )
