"""OmniBal's search finds the partitions of lowest variance near the even one."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
from partition.instances import KINDS, instance

from flowtrain.plan.partition import NoPartitionError, partition
from flowtrain.plan.partition.omnibal import omnibal
from flowtrain.plan.partition.stages import Problem, StageTable


@pytest.mark.parametrize("kind", KINDS)
def test_it_tries_the_lowest_variances_of_all_moves_by_one_layer(kind: str) -> None:
    drawn = instance(kind, layers=20, stages=4, seed=3)
    arguments = drawn.arguments | {"memory_bytes": 1 << 50, "levels": ["none"]}
    table = StageTable(Problem(layers=drawn.layers, **arguments))
    until = numpy.append(0.0, drawn.layers.forward_s.cumsum())
    even = [int(numpy.abs(until - until[-1] * stage / 4).argmin()) for stage in (1, 2, 3)]
    near = [
        [*(cut + move for cut, move in zip(even, moves, strict=True)), 20]
        for moves in itertools.product((-1, 0, 1), repeat=3)
    ]
    near.sort(key=lambda ends: numpy.var(numpy.diff(until[[0, *ends]])))
    for trials in (1, 5, 27):
        assert omnibal(table, trials=trials) == min(near[:trials], key=table.step_s)


def test_it_says_that_others_fit_if_none_that_it_tries_does() -> None:
    failed = 0
    for kind, seed in itertools.product(KINDS, range(8)):
        drawn = instance(kind, layers=12, stages=6, seed=seed)
        try:
            exact = partition(drawn.layers, **drawn.arguments)
        except NoPartitionError:
            continue
        try:
            found = partition(drawn.layers, **drawn.arguments, policy="omnibal")
        except NoPartitionError as error:
            assert "policy 'omnibal' tries fits" in str(error)
            failed += 1
            continue
        assert math.isfinite(found.step_s)
        assert found.step_s >= exact.step_s * (1 - 1e-12)
    assert failed
