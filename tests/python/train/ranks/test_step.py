from __future__ import annotations

import torch

from flowtrain.train.ranks.step import dropout_of

CPU = torch.device("cpu")


def test_no_two_ranks_or_slots_draw_the_same_dropout_and_none_changes_other_draws() -> None:
    draws = set()
    state = torch.random.get_rng_state()
    for rank in range(3):
        for slot in range(3):
            with dropout_of(CPU, 0, 5, rank, slot):
                draws.add(tuple(torch.rand(4).tolist()))
    assert len(draws) == 9
    with dropout_of(CPU, 0, 5, 2, 2):
        assert tuple(torch.rand(4).tolist()) in draws
    assert torch.equal(torch.random.get_rng_state(), state)
