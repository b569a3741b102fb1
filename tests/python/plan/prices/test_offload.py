"""Prices of states in host memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import pytest

from flowtrain.config.flow import FlowConfig
from flowtrain.cost.communication import Mesh
from flowtrain.plan.fixed import narrowed, run_space
from flowtrain.plan.prices.costs import Costs
from flowtrain.plan.result import NoPlanError, PlanReport
from flowtrain.plan.run_layout import RunLayout
from flowtrain.plan.search import search
from flowtrain.plan.space import Host
from tests.planned import small_model, small_pool, small_work
from tests.priced import PLENTY, SHARE, pipeline

HOST = Host()


@pytest.mark.parametrize(
    ("sharding", "on_device"), [("optimizer", (1, 0, 1, 0)), ("full", (0, 0, 0, 0))]
)
def test_what_replicas_share_out_is_in_host_memory(
    sharding: str, on_device: tuple[int, ...]
) -> None:
    work = small_work(trained=("projector", "backbone"))
    whole = pipeline(Mesh(), work=work).costs.states
    found = pipeline(Mesh(dp=2), work=work, sharding=sharding, offload=True).costs
    assert numpy.array_equal(found.states, whole * numpy.array(on_device)[:, None])
    # Half of 4 + 4 + 8 bytes of a parameter that trains, and of 2 bytes of another, in bfloat16.
    trained = whole[1] / 4
    frozen = whole[0] / 2 - trained
    assert frozen.any() and trained.any()
    assert found.host.sum(0) == pytest.approx(8 * trained + frozen)


def test_optimizers_of_the_host_move_each_state_at_the_rate_of_its_memory() -> None:
    cut, offloaded = (
        pipeline(Mesh(), sharding="optimizer", offload=offload).cut(PLENTY)
        for offload in (False, True)
    )
    assert cut is not None and offloaded is not None
    parameters = sum(small_model().parameters)
    # Weight and two moments read and written, and the gradient read, scaled and read for the norm.
    step_s = parameters * (2 * 12 + 16) / HOST.memory_bytes_per_s
    assert offloaded.optimizer_s == pytest.approx(step_s)
    # Weights and gradients cross once a step: both in float32, and half hidden by long passes.
    least_s = SHARE * parameters * (4 + 4) / HOST.link_bytes_per_s
    assert least_s <= offloaded.reduce_s - cut.reduce_s <= 2 * least_s
    assert offloaded.stage_s == cut.stage_s


def test_full_shards_cross_in_every_pass_also_on_one_rank() -> None:
    work = small_work(trained=("backbone",))

    def costs(offload: bool, microbatches: int) -> Costs:
        given: Any = {"work": work, "sharding": "full", "offload": offload}
        return pipeline(Mesh(), microbatches=microbatches, **given).costs

    plain, offloaded = costs(False, 1), costs(True, 1)
    parameters = plain.reduced.sum(0)
    frozen = plain.states[0] / 2  # Those that train are gathered from the master weights.
    forward_s = (4 * parameters + 2 * frozen) / HOST.link_bytes_per_s
    # Of blocks, weights that train are copied in once more; of all layers, gradients out.
    again = numpy.where(pipeline(Mesh(), work=work).chain.tables.block, 4 * parameters, 0)
    backward_s = (again + 4 * parameters) / HOST.link_bytes_per_s
    for passes, copied_s in (("forward", forward_s), ("backward", backward_s)):
        beside_s = getattr(offloaded, passes)[0, :5].sum(0)
        more_s = (getattr(offloaded, passes) - getattr(plain, passes))[0, 5]
        assert more_s == pytest.approx(copied_s - SHARE * numpy.minimum(copied_s, beside_s))
    # Gradients of later microbatches are added up there: of 4, three read two and write one.
    added = (costs(True, 4).backward - costs(False, 4).backward)[0, 1]
    rates = 1 / HOST.memory_bytes_per_s - 1 / small_pool(1).memory_bytes_per_s
    assert added == pytest.approx(3 / 4 * 3 * 4 * parameters * rates)


def test_a_plan_has_its_states_in_host_memory_and_an_error_names_that_way_out() -> None:
    def found(*words: str, offload: bool = True, **pool: Any) -> PlanReport:
        work = small_work()
        work = replace(work, optim=replace(work.optim, offload=offload))
        space = narrowed(run_space(FlowConfig()), words, encoders=["encoder"])
        pools = [small_pool(1, **pool)]
        return search(small_model(), work, pools, space=space, neighbours=False)

    # Also where they fit into the memory of the GPU, if that is asked for.
    for plan in (found().best, found("encoder.sharding=full").best):
        assert "replicated" not in [module.layout.sharding for module in plan.modules]
    sizes = {"memory_bytes": 100_000_000}
    with pytest.raises(NoPlanError, match="; optim.offload=true fits"):
        found(offload=False, **sizes)
    plan = found(**sizes).best
    layout = RunLayout.of_plan(plan)
    assert "optim.offload" in str(layout).split(", ")
    for module in plan.modules:
        assert module.layout.sharding != "replicated"
        assert module.memory[0].total <= module.memory_bytes
        assert module.memory[0].host > 0
    parameters = sum(small_model().parameters)
    assert plan.host_bytes == pytest.approx(16 * parameters)
