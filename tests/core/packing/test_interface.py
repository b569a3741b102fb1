"""The interface of the schedulers: values, bounds, couplings and full bins."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import lognormal_step

from flowtrain_core.packing import Assignment, schedule

OBJECTIVES = ("lockstep", "accumulate", "max-microbatch", "pipeline")
STAGES = 3


def stages_of(objective: str) -> int:
    return STAGES if objective == "pipeline" else 1


def bins_of(plan: Assignment) -> numpy.ndarray:
    return numpy.where(plan.slot < 0, -1, plan.slot * plan.ranks + plan.rank)


def value_outside(plan: Assignment, cost: numpy.ndarray) -> float:
    """The objective, added up here and not by what is tested."""
    loads = [[0.0] * plan.ranks for _ in range(plan.microbatches)]
    for i, (slot, rank) in enumerate(zip(plan.slot, plan.rank, strict=True)):
        if slot >= 0:
            loads[slot][rank] += float(cost[i])
    if plan.objective == "lockstep":
        return sum(max(slot) for slot in loads)
    ranks = list(zip(*loads, strict=True))
    if plan.objective == "accumulate":
        return max(sum(slots) for slots in ranks)
    if plan.objective == "pipeline":
        return max(sum(slots) + (plan.stages - 1) * max(slots) for slots in ranks)
    return max(max(slot) for slot in loads)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gap_is_what_it_is_outside(objective: Any) -> None:
    tokens, cost = lognormal_step(0, 256)
    cap = max(int(tokens.max()), int(1.25 * tokens.sum() / 32))
    plan = schedule(
        tokens, cost, ranks=8, microbatches=4, max_tokens=cap, objective=objective,
        stages=stages_of(objective),
    )  # fmt: skip
    value = value_outside(plan, cost)
    assert plan.value == pytest.approx(value, rel=1e-12)
    assert plan.gap == pytest.approx(value / plan.bound - 1, abs=1e-12)
    assert 0 <= plan.gap < 0.005
    assert (
        plan.bound * 32
        >= 0.999999
        * cost.sum()
        * {"lockstep": 4, "accumulate": 4, "max-microbatch": 1, "pipeline": 6}[objective]
    )
    assert plan.bin_tokens.max() <= cap
    assert plan.fill == pytest.approx(tokens.sum() / (32 * cap))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_float_bounds_are_below_brute_force(objective: Any) -> None:
    random = numpy.random.default_rng(4)
    for _ in range(20):
        tokens = random.integers(1, 9, 5)
        cost = random.random(5)
        plan = schedule(
            tokens, cost, ranks=2, microbatches=2, max_tokens=20, objective=objective,
            stages=stages_of(objective),
        )  # fmt: skip
        best = numpy.inf
        for places in itertools.product(range(4), repeat=5):
            load, used = numpy.zeros(4), numpy.zeros(4)
            numpy.add.at(load, list(places), cost)
            numpy.add.at(used, list(places), tokens)
            if used.max() > 20:
                continue
            grid = load.reshape(2, 2)
            pipes = grid.sum(axis=0) + (STAGES - 1) * grid.max(axis=0)
            values = (grid.max(axis=1).sum(), grid.sum(axis=0).max(), grid.max(), pipes.max())
            best = min(best, values[OBJECTIVES.index(objective)])
        assert plan.bound <= best + 1e-15
        assert plan.value >= best - 1e-12


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 50), max_size=40),
    ranks=st.integers(1, 5),
    microbatches=st.integers(1, 4),
    objective=st.sampled_from(OBJECTIVES),
    factor=st.integers(1, 1000),
)
def test_a_common_factor_changes_nothing(
    tokens: list[int], ranks: int, microbatches: int, objective: Any, factor: int
) -> None:
    cost = numpy.array([t * (t + 3) for t in tokens], numpy.int64)
    shape = {
        "ranks": ranks,
        "microbatches": microbatches,
        "max_tokens": 2000,
        "objective": objective,
        "stages": stages_of(objective),
    }
    plan = schedule(tokens, cost, **shape)
    scaled = schedule(tokens, cost * factor, **shape)
    assert (plan.slot >= 0).all() and (plan.slot < microbatches).all()
    assert (plan.rank >= 0).all() and (plan.rank < ranks).all()
    assert plan.slot.tolist() == scaled.slot.tolist()
    assert plan.rank.tolist() == scaled.rank.tolist()
    assert scaled.bound == plan.bound * factor


@pytest.mark.parametrize("unit", [1e-310, 1e-30, 1e300])
def test_float_costs_may_be_of_any_size(unit: float) -> None:
    cost = numpy.array([5.0, -0.0, 0.0, 3.0, 2.0])
    plan = schedule([1] * 5, cost * unit, ranks=2, microbatches=1, max_tokens=5)
    assert plan.value == pytest.approx(5 * unit, rel=1e-6)
    assert plan.bound <= plan.value


def one_f_one_b(cost: list[float], stages: int) -> float:
    """Time of a 1F1B pipeline by events; a backward pass takes twice its forward."""
    orders = []
    for stage in range(stages):
        ahead = min(len(cost), stages - 1 - stage)
        order = [("forward", m) for m in range(ahead)]
        for m in range(len(cost)):
            if ahead + m < len(cost):
                order.append(("forward", ahead + m))
            order.append(("backward", m))
        orders.append(order)
    ended: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * stages
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, m = order[0]
                needs = (kind, m, stage - 1 if kind == "forward" else stage + 1)
                if needs[2] == stages:
                    needs = ("forward", m, stage)
                if needs[2] >= 0 and needs not in ended:
                    break
                start = max(clock[stage], ended.get(needs, 0.0))
                clock[stage] = start + cost[m] * (1 if kind == "forward" else 2)
                ended[kind, m, stage] = clock[stage]
                order.pop(0)
    return max(clock)


def test_a_pipeline_is_no_longer_than_what_is_made_small() -> None:
    random = numpy.random.default_rng(11)
    for stages in (2, 3, 5, 8):
        for _ in range(20):
            tokens = random.integers(1, 100, 40)
            cost = (tokens * random.integers(1, 9, 40)).astype(numpy.float64)
            plan = schedule(
                tokens, cost, ranks=2, microbatches=7, max_tokens=250, objective="pipeline",
                stages=stages,
            )  # fmt: skip
            longest = max(one_f_one_b(plan.loads[:, rank].tolist(), stages) for rank in range(2))
            assert longest <= 3 * plan.value * (1 + 1e-12)
            assert longest > 3 * plan.value * 0.7


def test_equal_samples_can_change_places() -> None:
    tokens, cost = lognormal_step(1, 64)
    tokens, cost = numpy.repeat(tokens, 2), numpy.repeat(cost, 2)
    mixed = numpy.arange(128)
    mixed[10], mixed[11] = 11, 10
    shape = {"ranks": 4, "microbatches": 4, "max_tokens": 100_000}
    plain = schedule(tokens, cost, **shape)
    swapped = schedule(tokens[mixed], cost[mixed], **shape)
    assert plain.slot.tolist() == swapped.slot.tolist()
    assert plain.rank.tolist() == swapped.rank.tolist()


def test_an_unknown_objective_has_no_value() -> None:
    plan = schedule([1, 2], [1.0, 2.0], ranks=1, microbatches=1, max_tokens=3)
    with pytest.raises(ValueError, match="objective 'makespan': choose from lockstep, accumulate"):
        _ = dataclasses.replace(plan, objective="makespan").value


def test_a_checksum_tells_inputs_apart() -> None:
    shape = {"ranks": 2, "microbatches": 2, "max_tokens": 50}
    plan = schedule([1, 2, 3], [1.0, 2.0, 3.0], **shape)
    assert plan.checksum() == schedule([1, 2, 3], [1.0, 2.0, 3.0], **shape).checksum()
    others = [
        schedule([1, 2, 4], [1.0, 2.0, 3.0], **shape),
        schedule([1, 2, 3], [1.0, 2.0, 3.0 + 1e-15], **shape),
        schedule([1, 2, 3], [1.0, 2.0, 3.0], **(shape | {"max_tokens": 51})),
        schedule([1, 2, 3], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0], **shape),
        schedule([1, 2, 3], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0], coupling="rigid", **shape),
    ]
    assert len({plan.checksum(), *(other.checksum() for other in others)}) == 6


def test_encoder_work_goes_where_the_coupling_says() -> None:
    tokens, cost = lognormal_step(2, 256)
    encoder = numpy.random.default_rng(3).random(256) * cost
    encoder[::7] = 0
    shape = {"ranks": 8, "microbatches": 4, "max_tokens": 30000}
    plans = {
        name: schedule(tokens, cost, encoder, coupling=name, **shape)
        for name in ("prepass", "slot", "rigid")
    }
    for plan in plans.values():
        assert plan.slot.tolist() == plans["rigid"].slot.tolist()
        assert plan.encoder_loads.sum() == pytest.approx(encoder.sum())
    rigid = plans["rigid"]
    assert rigid.encoder_rank.tolist() == rigid.rank.tolist()
    assert (plans["slot"].encoder_slot == rigid.slot).all()
    assert set(plans["prepass"].encoder_slot) == {0}
    assert plans["prepass"].encoder_dist_ratio < 1e-3
    assert plans["slot"].encoder_dist_ratio < rigid.encoder_dist_ratio / 3


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_full_bins_are_found_where_packing_greedily_fails(objective: Any) -> None:
    tokens = [6, 4, 4, 4, 3, 3]
    shape: dict[str, Any] = {"ranks": 2, "microbatches": 1, "max_tokens": 12}
    shape |= {"objective": objective, "stages": stages_of(objective)}
    plan = schedule(tokens, tokens, **shape)
    assert plan.bin_tokens.tolist() == [[12, 12]]
    # What must go is placed though nothing else could be; what may wait does.
    waited = [0, *([1] * 6)]
    plan = schedule([5, *tokens], [9, *tokens], age=waited, max_age=1, **shape)
    assert plan.carried.tolist() == [0]
