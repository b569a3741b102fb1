"""Bytes of a rank as the planner counts them when it decides whether a plan fits."""

from __future__ import annotations

import math
from dataclasses import replace

from flowtrain.config.schema import RunConfig
from flowtrain.cost.communication import Mesh
from flowtrain.models.describe import describe
from flowtrain.plan.cluster import parse_cluster
from flowtrain.plan.fixed import laid_out, run_space, sharded
from flowtrain.plan.inputs import run_work
from flowtrain.plan.pools import pools_of
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.result import StageLayout
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.together import Together
from flowtrain.plan.space import Rules
from flowtrain.plan.work import Work
from flowtrain.workloads import Workload


def planned_bytes(
    config: RunConfig, samples: Workload, *, target_share: float, slots: int
) -> float:
    """Peak of a colocated rank with the layout of a run.

    Memory does not depend on the times, so that those of any GPU serve. Samples are equal: there is
    no room for ranks that have more than the mean.

    Args:
        config: The run.
        samples: Its samples, all of the same sizes.
        target_share: Share of the text tokens that are targets.
        slots: Slots of a rank.
    """
    flow, ranks = config.flow, config.flow.chosen.backbone_ranks
    own = config.parallel.backbone
    work = replace(run_work(config, samples), target_share=target_share)
    context = _context(config, work)
    shape = Shape(Mesh(dp=ranks), own.sharding, own.shard_ranks)
    pipeline = context.pipeline("backbone", shape, slots)
    stage = StageLayout(
        first=0,
        end=len(pipeline.chain.kinds),
        recompute=own.recompute,
        recompute_layers=own.recompute_layers,
    )
    (backbone,) = pipeline.memory((stage,))
    if flow.chunk_slots is None:
        encoders = context.colocated_encoders(ranks)
    else:
        encoders = context.chunked_encoders(shape, slots, flow.chunk_slots, cutoff_s=math.inf)
    (encoder,) = (each for each in encoders if _is_that_of(config, each))
    # One module runs beside what the other one holds.
    return float(encoder.held_bytes + max(backbone.total, backbone.states + encoder.working_bytes))


def _context(config: RunConfig, work: Work) -> Context:
    side = "backbone" if config.flow.mode == "frozen" else "encoder"
    layout = config.flow.chosen
    space = laid_out(run_space(config.flow), layout)
    if layout.backbone_ranks > 1:
        parallel = config.parallel
        space = sharded(space, {"encoder": parallel.encoder, "backbone": parallel.backbone})
    (pool,) = pools_of(
        parse_cluster(f"1x{layout.backbone_ranks}xH100"), "bfloat16", extrapolate=True
    )
    model = describe(config.model.folder, projector_side=side).with_inputs(work.share)
    return Context(model, work, pool, space, Rules(headroom=1.0))


def _is_that_of(config: RunConfig, encoder: Together) -> bool:
    """Whether an encoder computes again what that of a run does."""
    (price,) = encoder.prices
    own = config.parallel.encoder
    again = 0 if own.recompute == "none" else own.recompute_layers
    return price.recompute == config.flow.recompute and price.again == again
