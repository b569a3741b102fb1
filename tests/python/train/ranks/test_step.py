from __future__ import annotations

import torch

from flowtrain.train.ranks.step import seed_dropout


def test_no_two_ranks_or_slots_draw_the_same_dropout() -> None:
    draws = set()
    for rank in range(3):
        for slot in range(3):
            seed_dropout(0, 5, rank, slot)
            draws.add(tuple(torch.rand(4).tolist()))
    assert len(draws) == 9
    seed_dropout(0, 5, 2, 2)
    assert tuple(torch.rand(4).tolist()) in draws
