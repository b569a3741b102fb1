"""Plans that FlowTrain runs, and what they set in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowtrain.config.cache import CacheConfig
from flowtrain.config.checks import ConfigError
from flowtrain.config.flow import FlowConfig
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.plan.fixed import narrowed, run_space
from flowtrain.plan.fixed_sizes import check_sizes
from flowtrain.plan.planned_modules import planned_modules
from flowtrain.plan.result import Plan, PlanReport
from flowtrain.plan.run_layout import RunLayout
from flowtrain.plan.runtime import ANY
from flowtrain.plan.search import search
from tests.planned import small_model, small_pool, small_work

GIVEN: dict[str, Any] = {"neighbours": False, "batches": 0}


def found(*words: str, **flow: Any) -> PlanReport:
    space = narrowed(run_space(FlowConfig(**flow)), words, encoders=["encoder"])
    return search(small_model(), small_work(), [small_pool(4)], space=space, **GIVEN)


def test_a_plan_may_be_fixed_to_copies_that_some_ranks_divide() -> None:
    report = found("mode=colocated", "backbone.sharding=full", "backbone.shard_ranks=2")
    for plan in report.plans:
        backbone = RunLayout.of_plan(plan).parallel.backbone
        ranks = plan.module("backbone").layout.dp
        assert (backbone.sharding, backbone.shard_ranks) == ("full", 2 if ranks == 4 else None)
    best = RunLayout.of_plan(report.best)
    assert "parallel.backbone.sharding=full, parallel.backbone.shard_ranks=2" in str(best)
    *_, backbone = planned_modules(report.best, small_model(), small_work().trained)
    assert backbone.mesh == {"replicate": 2, "shard": 2}
    pool = small_pool(4)
    for words, said in (
        (["backbone.shard_ranks=2", "backbone.dp=3"], "must divide the replicas"),
        (["backbone.shard_ranks=2", "backbone.sharding=replicated"], "nothing is divided"),
    ):
        space = narrowed(run_space(FlowConfig()), words, encoders=["encoder"])
        with pytest.raises(ConfigError, match=said):
            check_sizes(space, small_model(), [pool], batch=32)


def test_with_stale_weights_encoders_are_whole_and_steps_in_one_order() -> None:
    def allowed(plan: Plan) -> bool:
        encoder = RunLayout.of_plan(plan).parallel.encoder
        return encoder.sharding == "replicated" and plan.chunk_slots is None

    assert all(map(allowed, found(mode="bounded", staleness=1).plans))
    otherwise = found().plans
    assert any(plan.chunk_slots for plan in otherwise)
    # Ranks of a sharded encoder could not encode different images.
    cached = found(mode="frozen", cache=CacheConfig(path=Path("features"))).plans
    assert any(plan.chunk_slots for plan in cached)
    assert {plan.module("encoder").layout.sharding for plan in cached} == {"replicated"}
    assert any(plan.module("encoder").layout.sharding == "full" for plan in otherwise)


def test_an_encoder_of_a_run_on_its_own_keeps_a_whole_step() -> None:
    words = ("mode=disaggregated", "microbatches=4", "encoder.dp=2", "backbone.dp=2")
    space = narrowed(run_space(FlowConfig()), words, encoders=["encoder"])
    pool = small_pool(4, memory_bytes=4_000_000_000)
    step, two = (
        search(small_model(), small_work(), [pool], space=each, **GIVEN).best.modules[0]
        for each in (space, replace(space, runtime=ANY))
    )
    assert not step.layout.recompute
    assert step.memory[0].activations == pytest.approx(2 * two.memory[0].activations)


def test_what_a_run_gives_of_its_modules_holds_beside_what_memory_asks_for() -> None:
    (plan,) = found("mode=colocated", "microbatches=2", "backbone.dp=4").plans[:1]
    planned = RunLayout.of_plan(plan)
    again = ModuleParallel(sharding="full", recompute="full", recompute_layers=3)
    planned = replace(planned, parallel=ParallelConfig(backbone=again))
    given = ParallelConfig(
        encoder=ModuleParallel(recompute="selective"), backbone=ModuleParallel(sharding="optimizer")
    )
    beside = planned.beside(given).parallel
    assert beside.encoder == given.encoder
    assert beside.backbone == replace(again, sharding="optimizer")
    assert planned.beside(ParallelConfig()) == planned
