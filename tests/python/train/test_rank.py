from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flowtrain.config.schema import (
    DataConfig,
    FlowConfig,
    ModelConfig,
    PoolConfig,
    RunConfig,
    TrainConfig,
)
from flowtrain.plan import EncoderItem, Space, SpaceError, SpaceNeed, StepPlan
from flowtrain.train.rank import Seat, seed_dropout

SLAB = 4096


def plan(step: int, *items: tuple[int, int, int]) -> StepPlan:
    """A plan of items, each (encoder, reader, slabs)."""
    made = [
        EncoderItem(
            index=index, encoder=encoder, reader=reader, slot=0, row=0, num_tokens=slabs, images=()
        )
        for index, (encoder, reader, slabs) in enumerate(items)
    ]
    return StepPlan(step=step, kind="train", items=tuple(made))


def seat(first: SpaceNeed, **pool: Any) -> Seat:
    """A rank of two worlds of two, whose first plans need so many slabs."""
    config = RunConfig(
        run=Path("run"),
        model=ModelConfig(config=Path("model")),
        data=DataConfig(path=Path("train.jsonl")),
        train=TrainConfig(steps=9),
        flow=FlowConfig(encoders=2, backbones=2),
        pool=PoolConfig(slab_bytes=SLAB, **pool),
    )
    rest: Any = dict.fromkeys(("world", "board", "pool", "activity", "adapter"))
    plans: Any = SimpleNamespace(layout=lambda: first)
    space = Space(slab_bytes=SLAB, row_bytes=SLAB, trained=True)
    return Seat(config=config, plans=plans, space=space, **rest)


def test_a_pool_that_holds_every_plan_is_enough_for_all_of_them() -> None:
    # One encoder makes all of the first plan, one backbone rank reads all of the second.
    plans = [plan(0, (0, 0, 4), (0, 1, 4)), plan(1, (0, 0, 4), (1, 0, 4))]
    space = seat(SpaceNeed(activation=0, gradient=0)).space
    needs = [space.need(each) for each in plans]
    sizes = [space.total_bytes(need, encoders=2, backbones=2) for need in needs]
    assert sizes == [24 * SLAB, 24 * SLAB]
    rank = seat(needs[0].join(needs[1]), bytes=24 * SLAB)
    granted = rank.granted()
    for each, need in zip(plans, needs, strict=True):
        assert rank.need(each) == need
        granted = rank.check_space(each, granted)
        assert granted == need
    with pytest.raises(SpaceError, match="step 2 needs at least .* 4096 bytes are missing"):
        seat(needs[0], bytes=24 * SLAB - SLAB).need(plan(2, (0, 0, 4), (0, 1, 4)))


def test_segments_grow_by_the_scale_until_the_pool_is_full() -> None:
    rank = seat(SpaceNeed(activation=2, gradient=2), max_cells=60)
    granted = rank.granted()
    assert granted == SpaceNeed(activation=4, gradient=4)
    granted = rank.check_space(plan(0, (0, 0, 5)), granted)
    assert granted == SpaceNeed(activation=10, gradient=10)
    assert rank.check_space(plan(1, (0, 0, 6), (0, 1, 4)), granted) == granted
    # The pool holds less than twice what this plan needs.
    granted = rank.check_space(plan(2, (0, 0, 6), (0, 1, 5)), granted)
    assert granted == SpaceNeed(activation=19, gradient=10)
    assert rank.check_space(plan(3, (0, 0, 15)), granted) == SpaceNeed(activation=15, gradient=15)


def test_no_two_ranks_or_slots_draw_the_same_dropout() -> None:
    draws = set()
    for rank in range(3):
        for slot in range(3):
            seed_dropout(0, 5, rank, slot)
            draws.add(tuple(torch.rand(4).tolist()))
    assert len(draws) == 9
    seed_dropout(0, 5, 2, 2)
    assert tuple(torch.rand(4).tolist()) in draws
