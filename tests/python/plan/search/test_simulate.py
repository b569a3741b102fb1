"""Simulated steps against mean ones, and against values computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy
import pytest

from flowtrain.cost.communication import Mesh
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.prices.costs import SECONDS, Shape, costs_of
from flowtrain.plan.prices.network import Network
from flowtrain.plan.result import Sharding
from flowtrain.plan.search import search
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Prefix, Priced
from flowtrain.plan.search.interface import best_plan
from flowtrain.plan.search.loads import Loads
from flowtrain.plan.search.simulate import Simulation, by_chunks
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
    # In both orders of a colocated step.
    orders = {plan.chunk_slots is not None for plan in even}
    assert orders == ({False, True} if mode == "colocated" else {False})
    for plan in even:
        # By 1F1B, an encoder does not wait for gradients as the formula says: the replay is shorter
        # where backward passes are not in proportion to forward passes.
        shorter = 0.25 if mode == "disaggregated" else 1e-9
        assert plan.simulated_s is not None
        assert plan.step_s * (1 - shorter) <= plan.simulated_s <= plan.step_s * (1 + 1e-9)


def test_ranks_that_meet_wait_for_the_slowest_in_each_part_of_a_chunk() -> None:
    # Of two ranks, in three microbatches.
    encoder_s = numpy.array([[1.0, 3.0], [2.0, 1.0], [4.0, 0.0]])
    backbone_s = numpy.array([[4.0, 4.0], [5.0, 6.0], [1.0, 2.0]])
    by_slots = {1: 3 + 4 + 2 + 6 + 4 + 2, 2: (4 + 10) + (4 + 2), 3: 7 + 12, 9: 7 + 12}
    for slots, seconds in by_slots.items():
        assert by_chunks(encoder_s, backbone_s, slots) == seconds
    # Where ranks meet in each microbatch of the backbone, its passes are those of the slowest.
    slowest_s = backbone_s.max(axis=1, keepdims=True)
    assert by_chunks(encoder_s, slowest_s, 2) == (4 + 10) + (4 + 2)


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


@pytest.mark.parametrize(
    ("sizes", "sharding", "kind"),
    [({"tp": 2}, "replicated", "tp"), ({"cp": 2}, "replicated", "cp"), ({}, "full", "shards")],
)
@pytest.mark.parametrize("size", [0.0, 0.5])
def test_messages_of_a_light_microbatch_are_those_of_its_price(
    sizes: dict[str, int], sharding: Sharding, kind: str, size: float
) -> None:
    """Collectives have their latency, and weights are gathered, where little is computed."""
    space = Space(modes=("prefix",), tp=(1, 2), cp=(1, 2), pp=(1,), microbatches=(1,))
    slow = Link(latency_s=1e-5, bytes_per_s=2e8)  # Attention does not hide the ring.
    topology = Topology(devices_per_node=4, inside=slow, between=slow)
    pool = small_pool(8, memory_bytes=4_000_000_000, topology=topology)
    context = Context(small_model(), small_work(), pool, space, Rules())
    shape = Shape(Mesh(dp=8 // math.prod(sizes.values()), **sizes), sharding)
    plan = Prefix(context=context, shape=shape, microbatches=1, bound_s=0.0).priced()
    assert plan is not None
    loads = Loads(plan)
    text, inputs = numpy.full((1, 1), loads.mean_text), numpy.full((1, 1), loads.mean_inputs[0])
    tokens = numpy.full((1, 1), loads.mean_tokens)
    passes = loads.passes(size * text, [size * inputs], size * tokens)
    cut, whole = plan.cut, loads.passes(text, [inputs], tokens)
    assert whole.ravel() == pytest.approx([cut.forward_s[0], cut.backward_s[0]])
    row = plan.pipeline.row
    light = replace(row, tokens=size * row.tokens, encoded=(size * row.encoded[0],))
    network = Network(context.pool.topology, shape.gpus)
    count = plan.pipeline.chain.layers_of_kind
    rates: dict[str, Any] = {
        "layers": count,
        "passes_per_step": numpy.ones(1),
        "memory_bytes_per_s": pool.memory_bytes_per_s,
        "host": context.rules.host,
        "exposed": context.rules.exposed_share,
    }
    costs, mean = (costs_of(context.tables, shape, [of], network, **rates) for of in (light, row))
    named = SECONDS.index(kind)
    of_price = (costs.forward[0, 2:].sum(0) @ count, costs.backward[0, 2:].sum(0) @ count)
    computing = [mean.forward[0, 0] @ count, mean.backward[0, 1] @ count]
    found = passes.ravel() - size * numpy.array(computing)
    assert found == pytest.approx(of_price)
    grown = costs.forward[0, named] @ count / (mean.forward[0, named] @ count)
    assert grown > size


def test_plans_are_simulated_as_long_as_the_next_one_may_be_the_shortest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, work, pools = small_model(), small_work(), [small_pool(8)]
    space = Space(tp=(1, 2), cp=(1,), pp=(1, 2), microbatches=(1, 2, 4))
    given: dict[str, Any] = {"space": space, "neighbours": False, "batches": 2}
    every = search(model, work, pools, keep=1000, **given).plans
    for keep in (1, 3):
        report = search(model, work, pools, keep=keep, **given)
        assert report.all_simulated and report.all_uniform_simulated
        below = [plan for plan in every if plan.step_s < report.best.best_s]
        assert keep < len(below) < len(every) and report.simulated >= len(below)
        assert report.best == min(below, key=lambda plan: plan.best_s) != report.cheapest
        uniform = [plan for plan in every if plan.mode == "prefix"]
        assert report.uniform is not None
        shorter = [plan for plan in uniform if plan.best_s < report.uniform.best_s]
        assert all(plan.step_s >= report.uniform.best_s for plan in shorter)
    monkeypatch.setattr("flowtrain.plan.search.finished.MOST_SIMULATED", 3)
    report = search(model, work, pools, keep=1, **given)
    assert (report.all_simulated, report.simulated <= 6) == (False, True)


def test_the_final_order_is_that_of_the_simulation_and_both_prices_are_kept() -> None:
    report = search(small_model(), small_work(), [small_pool(8)], keep=12)
    simulated = [plan.simulated_s or 0.0 for plan in report.plans]
    assert simulated == sorted(simulated) and 0.0 not in simulated
    assert report.best is report.plans[0]
    assert report.cheapest.step_s == min(plan.step_s for plan in report.plans)
    assert report.gap == report.best.step_s / report.cheapest.step_s - 1
    assert report.uniform is not None and report.uniform.simulated_s is not None
    assert report.best.best_s <= report.uniform.simulated_s
    again = search(small_model(), small_work(), [small_pool(8)], keep=12)
    assert again.plans == report.plans
