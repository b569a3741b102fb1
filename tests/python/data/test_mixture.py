from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flowtrain.config.data import DataConfig
from flowtrain.config.sources import SourceConfig
from flowtrain.data import DataError
from flowtrain.data import order as order_module
from flowtrain.data.mixture import MixedOrder, epoch_draws, sample_order, shares
from flowtrain.data.order import SampleOrder
from flowtrain.data.records import Dataset


def drawn(order: MixedOrder, epochs: int) -> list[list[int]]:
    """The samples of each epoch."""
    size = order.epoch_draws
    return [[order.index(size * epoch + at) for at in range(size)] for epoch in range(epochs)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_draws_of_samples_of_a_source_differ_by_at_most_one_after_each_epoch(
    monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    monkeypatch.setattr(order_module, "_BLOCK", 7)
    sizes, draws = [10, 7, 1, 30], [25, 7, 3, 9]
    order = MixedOrder(sizes, draws, seed=3, shuffle=shuffle)
    bounds = list(pairwise(np.cumsum([0, *sizes]).tolist()))
    found: Counter[int] = Counter()
    for number, samples in enumerate(drawn(order, 8), start=1):
        found.update(samples)
        for (first, end), each in zip(bounds, draws, strict=True):
            of_source = [found[sample] for sample in range(first, end)]
            assert sum(of_source) == number * each
            assert max(of_source) - min(of_source) <= 1


def test_sources_of_weight_1_are_drawn_as_one_file_with_all_lines() -> None:
    order, whole = MixedOrder([4, 9, 2], [4, 9, 2], seed=5, shuffle=True), SampleOrder(15, 5, True)
    assert [order.index(c) for c in range(45)] == [whole.index(c) for c in range(45)]


def test_without_shuffling_a_source_follows_another_and_goes_on_in_the_next_epoch() -> None:
    order = MixedOrder([2, 4], [3, 2], seed=0, shuffle=False)
    assert drawn(order, 2) == [[0, 1, 0, 2, 3], [1, 0, 1, 4, 5]]


def test_a_part_of_a_source_is_another_with_each_seed_and_pass() -> None:
    parts = []
    for seed in (0, 1):
        epochs = drawn(MixedOrder([1000, 10], [500, 10], seed=seed, shuffle=True), 4)
        of_source = [frozenset(s for s in epoch if s < 1000) for epoch in epochs]
        assert of_source[0] | of_source[1] == of_source[2] | of_source[3] == set(range(1000))
        parts += of_source
    assert len(set(parts)) == 8
    # Sources of one size are not drawn in one order.
    twins = drawn(MixedOrder([1000, 1000], [500, 500], seed=0, shuffle=True), 1)[0]
    assert {s for s in twins if s < 1000} != {s - 1000 for s in twins if s >= 1000}


def test_any_cursor_gives_its_sample_so_that_a_resumed_run_goes_on() -> None:
    def order() -> MixedOrder:
        return MixedOrder([5000, 8000], [12_500, 800], seed=1, shuffle=True)

    whole = order()
    all_samples = [whole.index(cursor) for cursor in range(40_000)]
    for cursor in np.random.default_rng(0).integers(0, 40_000, 20).tolist():
        resumed = order()
        assert [resumed.index(c) for c in range(cursor, cursor + 5)] == (
            all_samples[cursor : cursor + 5] + [whole.index(c) for c in range(40_000, cursor + 5)]
        )


def test_the_order_of_sources_is_the_same_in_every_version() -> None:
    order = MixedOrder([10**9, 10**9], [10**9 // 3, 10**8], seed=7, shuffle=True)
    assert [order.index(cursor) for cursor in (0, 1, 2, 10**9)] == [
        771129665,
        812816437,
        63781343,
        34599758,
    ]


@pytest.mark.parametrize("draws", [[25, 3], [10, 1], [5, 30], [4, 20]])
def test_so_many_draws_contain_every_sample_wherever_they_start(draws: list[int]) -> None:
    sizes = [10, 20]
    for shuffle in (True, False):
        order = MixedOrder(sizes, draws, seed=2, shuffle=shuffle)
        number = order.draws_of_all
        samples = [order.index(cursor) for cursor in range(3 * number)]
        for start in range(2 * number):
            assert set(samples[start : start + number]) == set(range(30))


def write(folder: Path, **lines: int) -> dict[str, Path]:
    paths = {name: folder / f"{name}.jsonl" for name in lines}
    for name, path in paths.items():
        path.write_text('{"a": 1}\n' * lines[name])
    return paths


def test_weights_are_rounded_from_the_decimal_number_to_draws(tmp_path: Path) -> None:
    paths = write(tmp_path, a=25, b=3, c=15)
    weights = {"a": 0.1, "b": 2, "c": 0.3}  # 2.5, 6 and 4.5
    data = DataConfig(sources=tuple(SourceConfig(path=paths[n], weight=weights[n]) for n in paths))
    dataset = Dataset(data)
    assert epoch_draws(data, dataset) == [3, 6, 5]
    assert sample_order(data, dataset, seed=0).epoch_draws == 14
    assert shares(data, dataset)[1] == (
        f"{paths['b']}: 3 samples, weight 2: 6 draws per epoch (42.9%)"
    )


def test_a_weight_that_draws_nothing_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, a=25)["a"]
    data = DataConfig(sources=(SourceConfig(path=path, weight=0.01),))
    with pytest.raises(DataError, match=r"a\.jsonl: weight=0\.01 of 25 samples draws none of them"):
        sample_order(data, Dataset(data), seed=0)
