"""Shifts of cuts find the shortest replay on small models."""

from __future__ import annotations

import itertools
import math

import pytest
from partition.instances import instance

from flowtrain.plan.partition import LEVELS, Layers, partition
from flowtrain.plan.partition.exact import exact
from flowtrain.plan.partition.replay import replay_stages
from flowtrain.plan.partition.replayed import replayed
from flowtrain.plan.partition.stages import Problem, StageTable


def table_of(kind: str, layers: int, stages: int, seed: int, microbatches: int) -> StageTable:
    drawn = instance(kind, layers=layers, stages=stages, seed=seed, microbatches=microbatches)
    return StageTable(Problem(layers=drawn.layers, **drawn.arguments, levels=LEVELS))


def replay_s(table: StageTable, ends: list[int]) -> float:
    if math.isinf(table.step_s(ends)):
        return math.inf
    return replay_stages(table.stages(ends), microbatches=table.problem.microbatches)


@pytest.mark.parametrize("kind", ["decoder", "trained", "frozen"])
def test_no_partition_of_a_small_model_has_a_shorter_replay(kind: str) -> None:
    shorter = 0
    for seed, microbatches in itertools.product(range(1, 7), (4, 9)):
        table = table_of(kind, 11, 4, seed, microbatches)
        found, first = replayed(table), exact(table)
        if found is None or first is None:
            assert found is first
            continue
        cuts = itertools.combinations(range(1, 11), 3)
        least_s = min(replay_s(table, [*cut, 11]) for cut in cuts)
        assert replay_s(table, found) == pytest.approx(least_s)
        shorter += replay_s(table, found) < replay_s(table, first) * (1 - 1e-9)
    assert shorter


@pytest.mark.parametrize(
    ("kind", "seed", "microbatches"), [("decoder", 4, 17), ("trained", 27, 14)]
)
def test_no_shift_of_one_cut_makes_the_replay_shorter(
    kind: str, seed: int, microbatches: int
) -> None:
    table = table_of(kind, 16, 5, seed, microbatches)
    found = replayed(table)
    assert found is not None
    for stage, shift in itertools.product(range(4), (-1, 1)):
        moved = [*found[:stage], found[stage] + shift, *found[stage + 1 :]]
        assert replay_s(table, moved) >= replay_s(table, found) * (1 - 1e-9)


def test_one_stage_has_no_cut_to_shift() -> None:
    layers = Layers.of(
        forward_s=[1.0, 2.0],
        backward_input_s=0.0,
        backward_weight_s=0.0,
        state_bytes=1,
        activation_bytes=0,
        recompute_s=0.0,
        output_bytes=1,
    )
    limits = {"stages": 1, "microbatches": 3, "memory_bytes": 2, "link_bytes_per_s": 1.0}
    assert partition(layers, **limits, policy="replayed").replay_s() == 9.0
