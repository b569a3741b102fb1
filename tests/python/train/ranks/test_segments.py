from __future__ import annotations

from typing import Any

import pytest

from flowtrain.config.layout import RankLayout
from flowtrain.config.pool import PoolConfig
from flowtrain.steps import EncoderItem, Space, SpaceError, SpaceNeed, StepPlan
from flowtrain.train.ranks.segments import SegmentSizes

SLAB = 4096


def plan(step: int, *items: tuple[int, int, int]) -> StepPlan:
    """A plan of items, each (encoder, reader, slabs)."""
    made = [
        EncoderItem(
            index=index, encoder=encoder, reader=reader, slot=0, row=0, num_rows=slabs, images=()
        )
        for index, (encoder, reader, slabs) in enumerate(items)
    ]
    return StepPlan(step=step, kind="train", items=tuple(made))


SPACE = Space(slab_bytes=SLAB, row_bytes=SLAB, trained=True)


def segments(**pool: Any) -> SegmentSizes:
    """Sizes in two worlds of two ranks each."""
    sizes = PoolConfig(slab_bytes=SLAB, **pool)
    return SegmentSizes(RankLayout.decoupled(2, 2), sizes, SPACE)


def test_a_pool_that_holds_every_plan_is_enough_for_all_of_them() -> None:
    # One encoder encodes all of the first plan, one backbone rank reads all of the second.
    plans = [plan(0, (0, 0, 4), (0, 1, 4)), plan(1, (0, 0, 4), (1, 0, 4))]
    needs = [SPACE.need(each) for each in plans]
    totals = [SPACE.total_bytes(need, encoder_ranks=2, backbone_ranks=2) for need in needs]
    assert totals == [24 * SLAB, 24 * SLAB]
    exact = segments(bytes=24 * SLAB)
    sizes = exact.initial(needs[0].join(needs[1]))
    for each, need in zip(plans, needs, strict=True):
        assert exact.need(each) == need
        sizes = exact.sizes_for(each, sizes)
        assert sizes == need
    with pytest.raises(SpaceError, match="step 2 needs at least .* 4096 bytes are missing"):
        segments(bytes=24 * SLAB - SLAB).need(plan(2, (0, 0, 4), (0, 1, 4)))


def test_segments_grow_by_the_scale_until_the_pool_is_full() -> None:
    growing = segments(max_cells=60)
    sizes = growing.initial(SpaceNeed(activation=2, gradient=2))
    assert sizes == SpaceNeed(activation=4, gradient=4)
    sizes = growing.sizes_for(plan(0, (0, 0, 5)), sizes)
    assert sizes == SpaceNeed(activation=10, gradient=10)
    assert growing.sizes_for(plan(1, (0, 0, 6), (0, 1, 4)), sizes) == sizes
    # The pool holds less than twice what this plan needs.
    sizes = growing.sizes_for(plan(2, (0, 0, 6), (0, 1, 5)), sizes)
    assert sizes == SpaceNeed(activation=19, gradient=10)
    assert growing.sizes_for(plan(3, (0, 0, 15)), sizes) == SpaceNeed(activation=15, gradient=15)
