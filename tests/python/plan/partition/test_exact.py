"""The solver finds what enumeration of all cuts and all levels finds."""

from __future__ import annotations

import itertools
import math

import pytest
from partition.instances import KINDS, instance
from partition.oracle import best_step_s

from flowtrain.plan.partition import LEVELS, Layers, NoPartitionError, partition
from flowtrain.plan.partition.chain import Chain
from flowtrain.plan.partition.exact import exact
from flowtrain.plan.partition.stages import Problem, StageTable

SMALL = [(6, 1), (5, 2), (4, 4), (8, 4), (9, 3)]


def found_step_s(kind: str, layers: int, stages: int, seed: int) -> tuple[float, float]:
    """The solver's minimum and that of enumeration, infinite where nothing fits."""
    drawn = instance(kind, layers=layers, stages=stages, seed=seed)
    expected = best_step_s(drawn.layers, **drawn.arguments)
    try:
        return partition(drawn.layers, **drawn.arguments).step_s, expected
    except NoPartitionError:
        return math.inf, expected


@pytest.mark.parametrize("kind", KINDS)
def test_small_models_have_the_minimum_of_all_cuts_and_levels(kind: str) -> None:
    fitting = 0
    for (layers, stages), seed in itertools.product(SMALL, range(12)):
        found, expected = found_step_s(kind, layers, stages, seed)
        assert found == pytest.approx(expected, rel=1e-12), (layers, stages, seed)
        fitting += math.isfinite(expected)
    assert len(SMALL) * 12 / 2 < fitting < len(SMALL) * 12


@pytest.mark.deep
@pytest.mark.parametrize("seed", [4, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_24_layers_and_6_stages_have_the_minimum_of_all_cuts_and_levels(
    kind: str, seed: int
) -> None:
    found, expected = found_step_s(kind, 24, 6, seed)
    assert math.isfinite(expected)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_bisection_finds_what_every_ceiling_in_turn_finds(kind: str) -> None:
    for seed, microbatches in itertools.product(range(8), (2, 3, 8)):
        drawn = instance(kind, layers=60, stages=8, seed=seed, microbatches=microbatches)
        table = StageTable(Problem(layers=drawn.layers, **drawn.arguments, levels=LEVELS))
        found = exact(table)
        if found is None:
            continue
        chain = Chain.of(table.seconds)
        best, ceiling = math.inf, math.inf
        while ceiling >= chain.shortest_longest():
            cut = chain.lowest_sum(ceiling)
            best = min(best, cut.total + (microbatches - 1) * cut.longest)
            ceiling = math.nextafter(cut.longest, 0.0)
        assert table.step_s(found) == pytest.approx(best, rel=1e-12), (seed, microbatches)


def test_the_first_and_the_last_stage_have_at_least_the_layers_that_are_asked_for() -> None:
    changed = 0
    for kind, ends, seed in itertools.product(KINDS, [(4, 1), (1, 4), (3, 2)], range(8)):
        drawn = instance(kind, layers=9, stages=3, seed=seed)
        table = StageTable(Problem(layers=drawn.layers, **drawn.arguments, levels=LEVELS))
        of_cuts = {
            (first, second): table.step_s([first, second, 9])
            for first, second in itertools.combinations(range(1, 9), 2)
        }
        expected = min(
            step_s
            for (first, second), step_s in of_cuts.items()
            if first >= ends[0] and 9 - second >= ends[1]
        )
        try:
            found = partition(drawn.layers, **drawn.arguments, ends=ends)
        except NoPartitionError:
            assert math.isinf(expected)
            continue
        assert found.step_s == pytest.approx(expected, rel=1e-12), (kind, ends, seed)
        assert found.stages[0].end >= ends[0] and 9 - found.stages[-1].first >= ends[1]
        changed += expected > min(of_cuts.values())
    assert changed


@pytest.mark.parametrize(
    ("microbatches", "end", "step_s"), [(1, 1, 200), (2, 2, 315), (11, 3, 1299)]
)
def test_with_more_microbatches_the_longest_stage_counts_more_than_the_sum(
    microbatches: int, end: int, step_s: float
) -> None:
    # Stages of 80 and 120, of 90 + 5 and 110, or of 100 + 9 and 100 s.
    layers = Layers.of(
        forward_s=[80, 10, 10, 100],
        backward_input_s=0.0,
        backward_weight_s=0.0,
        trained=False,
        state_bytes=1,
        activation_bytes=1,
        recompute_s=0.0,
        output_bytes=[0, 5, 9, 0],
    )
    best = partition(
        layers, stages=2, microbatches=microbatches, memory_bytes=10, link_bytes_per_s=1.0
    )
    assert (best.stages[0].end, best.step_s) == (end, step_s)
