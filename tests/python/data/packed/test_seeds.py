"""Random numbers of workers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from python.data.packed.kinds import ROWS, STEPS, Sample, batches_of, loader
from torch.utils.data import IterableDataset

from flowtrain.data import PackedLoader


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_the_loader_does_not_draw_from_torchs_global_generator(kind: str, workers: int) -> None:
    before = torch.get_rng_state()
    list(loader(kind, "exact", num_workers=workers))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_workers_draw_different_numbers_on_each_rank_and_equal_ones_in_each_run(kind: str) -> None:
    def drawn(samples: list[Sample]) -> tuple[float, ...]:
        return random.random(), float(torch.rand(1)), float(numpy.random.rand())

    def run(**changes: Any) -> list[list[tuple[float, ...]]]:
        made = loader(kind, "exact", num_workers=1, collate_fn=drawn, **changes)
        return [batches_of(made) for _ in range(2)]

    seen = [run(rank=0), run(rank=1), run(rank=0, seed=4)]
    for one, other in itertools.pairwise(epoch_ for of_rank in seen for epoch_ in of_rank):
        assert not {x for batch in one for x in batch} & {x for batch in other for x in batch}
    assert run(rank=0) == seen[0]


def test_all_ranks_read_the_same_random_stream() -> None:
    class Drawn(IterableDataset[Sample]):
        def __iter__(self) -> Iterator[Sample]:
            rows = ROWS[:]
            while rows:
                yield rows.pop(random.randrange(len(rows)))

    def drawing(samples: list[Sample]) -> list[int]:
        return [sample["id"] for sample in samples if random.random() < 2]

    ranks = [
        PackedLoader(
            Drawn(),
            **STEPS["exact"],
            ranks=2,
            rank=rank,
            num_workers=1,
            collate_fn=drawing,
        )
        for rank in range(2)
    ]
    both = [(batch, at) for rank in ranks for batch, at in rank]
    assert sorted(i for batch, at in both if not at.filler for i in batch) == list(range(len(ROWS)))
