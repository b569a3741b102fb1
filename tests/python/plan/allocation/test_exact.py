"""The solver finds what enumeration of all choices finds, and so do curve and ranking."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy
import pytest
from allocator.instances import KINDS, Instance, small
from allocator.oracle import all_steps, best_step_s

from flowtrain.plan.allocation import (
    Allocation,
    NoAllocationError,
    curve,
    next_useful,
    ranked,
    solve,
)


def solved(drawn: Instance, **changes: Any) -> Allocation | None:
    try:
        return solve(drawn.candidates, **{**drawn.limits, **changes})
    except NoAllocationError:
        return None


def by_type(limit: Any, gpu_type: str) -> int:
    return limit if isinstance(limit, int) else limit[gpu_type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_is_the_minimum_of_all_choices_and_no_bound_is_above_it(kind: str) -> None:
    fitting = 0
    for gpus, seed in itertools.product((3, 12, 40, 96), range(8)):
        drawn = small(kind, gpus=gpus, seed=seed)
        expected = best_step_s(drawn.candidates, **drawn.limits)
        found = solved(drawn)
        assert (found is None) == math.isinf(expected), (gpus, seed)
        if found is None:
            continue
        fitting += 1
        assert found.step_s == pytest.approx(expected, rel=1e-12), (gpus, seed)
        # The bound never exceeds the step of its own allocation, so one that is not the best tells.
        for one in (found, solve(drawn.candidates, **drawn.limits, policy="flowtrain")):
            assert 0 <= one.bound_s <= expected * (1 + 1e-12)
        for choice in found.choices.values():
            assert choice.memory_bytes <= by_type(drawn.limits["memory_bytes"], choice.gpu_type)
    assert fitting >= 8


@pytest.mark.parametrize("kind", KINDS)
def test_the_ranking_begins_with_the_lowest_of_all_steps(kind: str) -> None:
    for gpus, seed in itertools.product((12, 40), range(3)):
        drawn = small(kind, gpus=gpus, seed=seed)
        steps = numpy.sort(all_steps(drawn.candidates, **drawn.limits))[:20]
        if not len(steps):
            continue
        found = ranked(drawn.candidates, **drawn.limits, count=20)
        assert [each.step_s for each in found] == pytest.approx(steps, rel=1e-12)
        chosen = [tuple((c.gpu_type, c.index) for c in each.choices.values()) for each in found]
        assert len(set(chosen)) == len(found)


@pytest.mark.parametrize("kind", ["two", "three", "total", "ties"])
def test_a_curve_has_the_best_step_of_each_number_of_gpus(kind: str) -> None:
    fitting = 0
    for seed in range(3):
        drawn = small(kind, gpus=40, seed=seed)
        limits = {name: value for name, value in drawn.limits.items() if name != "gpus"}
        alone = {gpus: solved(drawn, gpus=gpus) for gpus in range(1, 41)}
        if alone[40] is None:
            continue
        found = curve(drawn.candidates, **limits, gpus=range(1, 41))
        assert list(found) == [gpus for gpus, one in alone.items() if one is not None]
        steps = [each.step_s for each in found.values()]
        assert steps == pytest.approx([one.step_s for one in alone.values() if one], rel=1e-12)
        assert all(after <= before for before, after in itertools.pairwise(steps))
        fitting += len(found)
    assert fitting


def test_the_next_useful_number_of_gpus_is_the_smallest_that_is_better() -> None:
    helped = 0
    for seed in range(12):
        drawn = small("two", gpus=24, seed=seed)
        found = solved(drawn)
        if found is None:
            continue
        more = next_useful(drawn.candidates, **drawn.limits)
        limit = 200 if more is None else more.gpus
        steps = [best_step_s(drawn.candidates, **drawn.limits | {"gpus": limit - 1})]
        assert steps == pytest.approx([found.step_s], rel=1e-12)
        if more is not None:
            helped += 1
            expected = best_step_s(drawn.candidates, **drawn.limits | {"gpus": limit})
            assert more.step_s == pytest.approx(expected, rel=1e-12)
            assert more.step_s < found.step_s
    assert helped >= 3
