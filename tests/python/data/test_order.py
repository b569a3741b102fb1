from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from flowtrain.data import order as module
from flowtrain.data.order import SampleOrder


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_epoch_of_every_size_draws_each_sample_once(
    monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 7)
    for size in (*range(1, 150), 255, 256, 257, 1023, 1024, 1025):
        order = SampleOrder(size, seed=size, shuffle=shuffle)
        drawn = [order.index(cursor) for cursor in range(3 * size)]
        for epoch in range(3):
            of_epoch = drawn[size * epoch : size * (epoch + 1)]
            assert sorted(of_epoch) == list(range(size))
            assert order.of_epoch(epoch).tolist() == of_epoch


def test_any_cursor_can_be_read_in_any_order() -> None:
    order = SampleOrder(10_000, seed=1, shuffle=True)
    drawn = [order.index(cursor) for cursor in range(30_000)]
    assert drawn[:10_000] != drawn[10_000:20_000]
    cursors = np.random.default_rng(0).integers(0, 30_000, 50).tolist()
    assert [order.index(cursor) for cursor in cursors] == [drawn[cursor] for cursor in cursors]


def test_the_order_is_the_same_in_every_version() -> None:
    order = SampleOrder(10**12, seed=2**63 - 1, shuffle=True)
    assert [order.index(cursor) for cursor in (0, 1, 10**12 - 1, 10**12)] == [
        945937370832,
        496106534810,
        31542340827,
        650068320685,
    ]


def test_each_permutation_of_a_small_data_set_is_as_likely_as_any_other() -> None:
    seeds = 6_000
    found = Counter(
        tuple(SampleOrder(5, seed, shuffle=True).of_epoch(0).tolist()) for seed in range(seeds)
    )
    expected = seeds / 120
    chi_squared = sum(
        (found[each] - expected) ** 2 / expected for each in itertools.permutations(range(5))
    )
    # 119 degrees of freedom; 8 rounds instead of 12 give about 270.
    assert chi_squared < 119 + 4 * (2 * 119) ** 0.5


def test_neighbours_in_the_file_are_not_neighbours_in_the_order() -> None:
    size = 100_000
    order = SampleOrder(size, seed=0, shuffle=True)
    epochs = [order.of_epoch(epoch) for epoch in range(2)]
    pairs = [(epochs[0][:-1], epochs[0][1:]), (epochs[0], np.arange(size)), tuple(epochs)]
    for one, other in pairs:
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / size**0.5
