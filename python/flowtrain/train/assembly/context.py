"""The context of a rank, as the configuration of its run sets it."""

from __future__ import annotations

from flowtrain.config.schema import RunConfig
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.registry import family_for
from flowtrain.steps import Space
from flowtrain.train.control.board import Board
from flowtrain.train.control.world import World
from flowtrain.train.planning.plans import PublishedPlans
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.membership import Membership
from flowtrain.train.ranks.segments import SegmentSizes


def context_of(
    config: RunConfig, membership: Membership, world: World, *, first: int
) -> RankContext:
    """Context of a rank of a run.

    Args:
        config: The run.
        membership: The rank, which has joined the job.
        world: Its world.
        first: First step of this start of the run.
    """
    board = Board(membership.store, first=first) if config.elastic else None
    flow = config.flow
    family = family_for(config.model.folder, projector_side=config.projector_side, lora=config.lora)
    pool_dtype = DTYPES[config.pool.dtype or config.model.pass_dtype]
    space = Space(
        slab_bytes=config.pool.slab_bytes,
        row_bytes=family.row_width * pool_dtype.itemsize,
        trained=flow.mode != "frozen",
        depth=_depth(config),
        colocated=flow.chosen.colocated,
        sharded=config.parallel_of("encoder").meets != "never",
    )
    tier = config.pool.tier
    if tier == "auto" and (world.device.type != "cuda" or config.elastic):
        tier = "host"
    return RankContext(
        flow=flow,
        seed=config.train.seed,
        dtype=DTYPES[config.model.pass_dtype],
        pool_dtype=pool_dtype,
        tier=tier,
        world=world,
        store=membership.store,
        pool=membership.pool,
        activity=membership.activity,
        family=family,
        plans=PublishedPlans(
            membership.store,
            processes=len(membership.labels),
            closed=None if board is None else board.close,
        ),
        space=space,
        segments=SegmentSizes(flow.chosen, config.pool, space),
        board=board,
    )


def _depth(config: RunConfig) -> int:
    """Whole steps that the segment of an encoder rank holds."""
    staleness = config.flow.staleness
    # A batch of an evaluation comes while the segment holds the steps that are encoded ahead.
    return staleness + 1 if staleness and config.eval.has_data else max(1, staleness)
