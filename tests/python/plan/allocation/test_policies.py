"""FlowTrain's and DFLOP's choices are the optima of their own objectives."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
from allocator.instances import small

from flowtrain.plan.allocation import Candidates, NoAllocationError, solve


@pytest.mark.parametrize("kind", ["two", "three", "pools", "total", "tight"])
def test_flowtrain_has_the_optimum_of_its_own_milp(kind: str) -> None:
    pytest.importorskip("scipy")
    from allocator.milp import least_step_s, rates

    fitting = 0
    for seed in range(4):
        drawn = small(kind, gpus=24, seed=seed)
        expected = rates(drawn.candidates, **drawn.limits)
        if expected is None:
            continue
        fitting += 1
        found = solve(drawn.candidates, **drawn.limits, policy="flowtrain")
        assert (found.rate, found.mismatch) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        # Where this leaves a choice, the shortest step is taken; none is below the best one.
        best_s = least_step_s(drawn.candidates, **drawn.limits)
        assert solve(drawn.candidates, **drawn.limits).step_s == pytest.approx(best_s, rel=1e-9)
        assert found.step_s >= best_s * (1 - 1e-9)
    assert fitting


def test_flowtrain_prefers_equal_rates_to_a_short_step() -> None:
    vision = Candidates(
        gpus=numpy.array([1, 1]),
        microbatch_s=numpy.array([2.0, 1.0]),
        fill_s=numpy.array([9.0, 1.0]),
        memory_bytes=numpy.array([1, 1]),
    )
    backbone = Candidates(
        gpus=numpy.array([1, 2]),
        microbatch_s=numpy.array([2.0, 2.0]),
        fill_s=numpy.array([5.0, 4.0]),
        memory_bytes=numpy.array([1, 1]),
    )
    offers = {"vision": vision, "backbone": backbone}
    chosen = {}
    for policy in ("exact", "flowtrain"):
        found = solve(offers, gpus=3, microbatches=2, memory_bytes=1, policy=policy)
        chosen[policy] = [choice.index for choice in found.choices.values()]
        chosen[policy].append(found.mismatch)
    # Of two backbones with the same rate, both take the one that fills faster.
    assert chosen == {"exact": [1, 1, 0.5], "flowtrain": [0, 1, 0.0]}


def test_dflop_minimizes_stages_times_the_longest_of_all_pairs_that_use_all_gpus() -> None:
    found_any = 0
    for gpus, seed in itertools.product((8, 24), range(6)):
        drawn = small("two", gpus=gpus, seed=seed)
        limit, microbatches = drawn.limits["memory_bytes"], drawn.limits["microbatches"]
        best = math.inf
        (vision,), (backbone,) = drawn.candidates.values()
        kept = numpy.flatnonzero(backbone.memory_bytes <= limit)
        stages = backbone.fill_s[kept] / backbone.microbatch_s[kept]
        for number in numpy.flatnonzero(vision.memory_bytes <= limit):
            all_used = vision.gpus[number] + backbone.gpus[kept] == gpus
            longest = numpy.maximum(vision.microbatch_s[number], backbone.microbatch_s[kept])
            own = vision.fill_s[number] / vision.microbatch_s[number]
            values = (microbatches - 1 + own + stages) * longest
            best = min(best, values[all_used].min(initial=math.inf))
        try:
            found = solve(drawn.candidates, **drawn.limits, policy="dflop")
        except NoAllocationError:
            assert math.isinf(best)
            continue
        found_any += 1
        choices = found.choices.values()
        passes = sum(choice.fill_s / choice.microbatch_s for choice in choices)
        longest_s = max(choice.microbatch_s for choice in choices)
        assert found.gpus == gpus
        assert (microbatches - 1 + passes) * longest_s == pytest.approx(best, rel=1e-12)
    assert found_any >= 4


def test_dflop_says_what_it_is_defined_for() -> None:
    drawn = small("three", gpus=40, seed=0)
    with pytest.raises(ValueError, match="policy 'dflop': 3 modules and 1 budgets"):
        solve(drawn.candidates, **drawn.limits | {"memory_bytes": 1 << 50}, policy="dflop")
    one = Candidates(gpus=numpy.array([1]), microbatch_s=1.0, fill_s=1.0, memory_bytes=1)
    with pytest.raises(
        NoAllocationError, match="policy 'dflop' allows no allocation of gpus=3, oth"
    ):
        solve({"a": one, "b": one}, gpus=3, microbatches=1, memory_bytes=1, policy="dflop")
