"""Sizes of the pool's segments."""

from __future__ import annotations

from flowtrain.config.layout import RankLayout
from flowtrain.config.pool import PoolConfig
from flowtrain.steps import Space, SpaceNeed, StepPlan, step_name


class SegmentSizes:
    """Determines how many slabs each rank's segment has, the same on every rank.

    Args:
        layout: The ranks.
        pool: Section `pool`.
        space: How records are split into slabs.
    """

    def __init__(self, layout: RankLayout, pool: PoolConfig, space: Space) -> None:
        self._layout = layout
        self._pool = pool
        self._space = space

    def need(self, plan: StepPlan) -> SpaceNeed:
        """Minimum slabs of each segment for a plan.

        Raises:
            SpaceError: The pool is too small for it.
        """
        need = self._space.need(plan)
        self._fit(need, step_name(plan.step))
        return need

    def initial(self, need: SpaceNeed) -> SpaceNeed:
        """Slabs of each segment at the start.

        Args:
            need: Maximum over the first plans. Each of these plans fits the pool, but the maximum
                may not; then no segment is made yet, and each plan sets its own sizes.
        """
        if not self._holds(need):
            return SpaceNeed(activation=0, gradient=0)
        return self._fit(need, "the first steps")

    def sizes_for(self, plan: StepPlan, current: SpaceNeed) -> SpaceNeed:
        """Slabs of each segment for a plan.

        Segments grow; if the pool cannot hold the grown ones, it is divided anew for this plan.

        Args:
            plan: The plan.
            current: Current slabs of each segment.

        Raises:
            SpaceError: The pool is too small for this plan.
        """
        need = self._space.need(plan)
        if need.join(current) == current:
            return current
        sizes = self._fit(need, step_name(plan.step))
        grown = sizes.join(current)
        return grown if self._holds(grown) else sizes

    def _holds(self, need: SpaceNeed) -> bool:
        layout, pool = self._layout, self._pool
        limit = self._space.limit_bytes(pool_bytes=pool.bytes, max_slabs=pool.max_cells)
        size = self._space.total_bytes(
            need, encoder_ranks=layout.encoder_ranks, backbone_ranks=layout.backbone_ranks
        )
        return size <= limit

    def _fit(self, need: SpaceNeed, who: str) -> SpaceNeed:
        layout, pool = self._layout, self._pool
        return self._space.fit(
            need,
            encoder_ranks=layout.encoder_ranks,
            backbone_ranks=layout.backbone_ranks,
            pool_bytes=pool.bytes,
            max_slabs=pool.max_cells,
            scale=pool.scale,
            who=who,
        )
