"""How far encoder ranks that come and go run ahead of the readers, in slabs of their segments."""

from __future__ import annotations

from flowtrain.config.pool import PoolConfig
from flowtrain.free_memory import free_memory
from flowtrain.steps import EncoderItem, Space, StepPlan

# Share of the free memory that all encoder ranks take together, if `pool.bytes` is not set.
_SHARE = 4


class RunAhead:
    """Determines how many slabs the segment of an encoder rank has.

    It holds all items of the steps that are planned ahead, unless that exceeds its share of the
    memory; at least it holds the largest item.

    Args:
        space: How records are split into slabs.
        pool: Section `pool`.
        ranks: Encoder ranks with which the run was started.
        plan_ahead: `flow.plan_ahead`.
    """

    def __init__(self, space: Space, pool: PoolConfig, *, ranks: int, plan_ahead: int) -> None:
        self._space = space
        self._steps = plan_ahead + 1
        total = free_memory() // _SHARE if pool.bytes is None else pool.bytes
        self._limit = min(total // space.slab_bytes, pool.max_cells) // ranks

    def slabs(self, plan: StepPlan, current: int = 0) -> int:
        """Slabs for a plan and those behind it; the present number if these are enough."""
        of_step = sum(map(self.parts, plan.items))
        least = max(map(self.parts, plan.items), default=0)
        wanted = max(least, min(self._limit, self._steps * of_step))
        if wanted <= current:
            return current
        # Steps differ in size: a segment that grows does so by half at least.
        return max(wanted, min(self._limit, current + current // 2))

    def parts(self, item: EncoderItem) -> int:
        """Slabs of an item."""
        return self._space.parts(item.num_rows)
