"""The algorithms of other packers, against brute force."""

import itertools

import numpy
import pytest

from flowtrain_core.packing.policies._partition import (
    bottleneck_match,
    difference,
    nearest_subset,
    next_fit,
)


def test_next_fit_closes_a_bin_at_either_cap() -> None:
    tokens, tiles = numpy.array([4, 4, 4, 1, 1, 1]), numpy.array([1, 1, 1, 2, 2, 0])
    assert next_fit(tokens, 8, tiles, 3).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("equal_count", [False, True])
def test_differencing_is_near_even_and_counts_are_equal_if_asked(equal_count: bool) -> None:
    # The textbook case: 8 7 6 5 4 in two parts differ by 2.
    five = numpy.array([8, 7, 6, 5, 4])
    two = difference(five, 2)
    assert abs(five[two == 0].sum() - five[two == 1].sum()) == 2
    random = numpy.random.default_rng(12)
    for count in (0, 1, 3, 7, 64, 101):
        values = random.integers(500, 1000, count)
        part = difference(values, 4, equal_count=equal_count)
        sums = numpy.bincount(part, weights=values, minlength=4)
        if equal_count:
            assert numpy.ptp(numpy.bincount(part, minlength=4)) <= 1
        if count == 64:
            assert numpy.ptp(sums) <= 20


def test_the_nearest_subset_is_found() -> None:
    random = numpy.random.default_rng(13)
    for number in range(100):
        values = random.integers(0, 50 if number % 2 else 3000, random.integers(0, 9))
        target = int(random.integers(0, 6000))
        subsets = numpy.array(list(itertools.product((0, 1), repeat=len(values))))
        best = numpy.abs(subsets @ values - target).min() if len(values) else target
        assert abs(int(values[nearest_subset(values, target)].sum()) - target) == best
    # Beyond 65,536 it is near to a 65,536th of the total a value.
    large = numpy.array([1_000_000_007, 2_000_000_011, 4_000_000_001])
    assert nearest_subset(large, 5_000_000_000).tolist() == [True, False, True]


def test_matching_minimizes_the_largest_load() -> None:
    random = numpy.random.default_rng(14)
    for _ in range(100):
        rows = int(random.integers(1, 5))
        columns = int(random.integers(rows, 6))
        paired, alone = random.integers(0, 13, (rows, columns)), random.integers(0, 13, rows)

        def largest(
            match: tuple[int, ...],
            paired: numpy.ndarray = paired,
            alone: numpy.ndarray = alone,
        ) -> int:
            return max(min(alone[row], paired[row, column]) for row, column in enumerate(match))

        best = min(largest(match) for match in itertools.permutations(range(columns), rows))
        found = tuple(bottleneck_match(paired, alone).tolist())
        assert largest(found) == best
        assert len(set(found)) == rows and max(found) < columns
