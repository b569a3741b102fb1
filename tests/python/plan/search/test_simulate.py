"""Simulated steps against mean ones, and against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from flowtrain.plan.search import search
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Prefix, Priced
from flowtrain.plan.search.interface import best_plan
from flowtrain.plan.search.simulate import Simulation
from flowtrain.plan.space import MODES, Rules, Space
from flowtrain.plan.work import Work
from flowtrain.workloads import Workload
from tests.planned import small_model, small_pool, small_work


def equal_samples(batch: int) -> Work:
    """Samples that do not differ."""
    count = 64
    workload = Workload(
        name="equal",
        tokens=numpy.full(count, 500),
        visual_tokens=numpy.full(count, 300),
        cost=numpy.ones(count),
        encoder_cost=numpy.ones(count),
    )
    return Work(workload=workload, batch=batch, item_tokens=300)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_equal_samples_takes_what_its_mean_takes(mode: str) -> None:
    work = equal_samples(64)
    space = Space(modes=(mode,), tp=(1, 2), cp=(1,), pp=(1,), microbatches=(1, 2, 4, 8))
    report = search(small_model(), work, [small_pool(8)], space=space)
    even = [
        plan
        for plan in report.plans
        # All replicas have the same whole number of samples in each microbatch.
        if all(64 % (module.layout.dp * plan.microbatches) == 0 for module in plan.modules)
    ]
    assert even
    for plan in even:
        # By 1F1B, an encoder does not wait for gradients as the formula says: the replay is shorter
        # where backward passes are not in proportion to forward passes.
        shorter = 0.25 if mode == "disaggregated" else 1e-9
        assert plan.simulated_s is not None
        assert plan.step_s * (1 - shorter) <= plan.simulated_s <= plan.step_s * (1 + 1e-9)


def priced(work: Work, gpus: int, space: Space) -> Priced:
    found = best_plan(Context(small_model(), work, small_pool(gpus), space, Rules()))
    assert found is not None
    return found


def test_unequal_samples_take_longer_than_their_mean() -> None:
    space = Space(modes=("prefix",), tp=(1,), cp=(1,), pp=(1,), microbatches=(2,))
    plan = priced(small_work(), 8, space)
    assert plan.pipeline.shape.mesh.dp == 8
    simulated = Simulation(small_work(), batches=4, seed=0).step_s(plan)
    assert plan.step_s * 1.01 < simulated < 2 * plan.step_s
    # Replicas that meet in each microbatch wait more often.
    shape = replace(plan.pipeline.shape, sharding="full")
    context = plan.context
    meeting = Prefix(context=context, shape=shape, microbatches=2, bound_s=0.0).priced()
    assert meeting is not None
    in_step = Simulation(small_work(), batches=4, seed=0).step_s(meeting)
    assert in_step / meeting.step_s > simulated / plan.step_s


def test_the_final_order_is_that_of_the_simulation_and_both_prices_are_kept() -> None:
    report = search(small_model(), small_work(), [small_pool(8)], keep=12)
    simulated = [plan.simulated_s or 0.0 for plan in report.plans]
    assert simulated == sorted(simulated) and 0.0 not in simulated
    assert report.best is report.plans[0]
    assert report.cheapest.step_s == min(plan.step_s for plan in report.plans) == report.bound_s
    assert report.uniform is not None and report.uniform.simulated_s is not None
    assert report.best.best_s <= report.uniform.simulated_s
    again = search(small_model(), small_work(), [small_pool(8)], keep=12)
    assert again.plans == report.plans
