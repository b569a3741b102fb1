"""The search for the best plan that a program runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flowtrain.config.checks import ConfigError
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.export import TARGETS
from flowtrain.plan.planned_modules import planned_modules
from flowtrain.plan.result import Plan
from flowtrain.plan.runtime import ANY, Runtime
from flowtrain.plan.search import search
from flowtrain.plan.search.candidates import backbone_shapes, divides_heads
from flowtrain.plan.space import Space
from tests.exported import RUN
from tests.planned import small_model, small_pool, small_work, two_encoders
from tests.plans import plan_file

NAMES = {
    "patches": "model.visual.patch_embed",
    "tower": "model.visual.blocks.{}",
    "projector": "model.visual.merger",
    "embedding": "model.language_model.embed_tokens",
    "decoder": "model.language_model.layers.{}",
    "head": "lm_head",
}
PREFIX = Space(modes=("prefix",))


def model() -> ModelDescription:
    """A small model whose layers have the names of Hugging Face; its tower is most of the work."""
    small, seen = small_model(towers=8), Counter[str]()
    layers = []
    for layer in small.layers:
        layers.append(replace(layer, name=NAMES[layer.name].format(seen[layer.name])))
        seen[layer.name] += 1
    return replace(small, layers=tuple(layers))


def plans(space: Space) -> Iterator[Plan]:
    for pp in (1, 2, 3):
        own = replace(space, pp=(pp,), microbatches=(4,))
        pool = small_pool(12, memory_bytes=150_000_000)
        yield from search(
            model(), small_work(), [pool], space=own, neighbours=False, batches=0
        ).plans


@pytest.mark.parametrize("name", TARGETS)
def test_the_best_plan_that_a_program_runs_is_found(name: str) -> None:
    target = TARGETS[name]

    def runs(plan: Plan) -> bool:
        file = plan_file(
            plan, "0", RUN, modules=planned_modules(plan, model(), small_work().trained)
        )
        try:
            target.of_plan(file)
        except ConfigError as error:
            assert f"--export {name}" in str(error)
            return False
        return True

    allowed = list(plans(target.space_of(model())))
    assert all(map(runs, allowed))
    assert {plan.modules[0].layout.pp for plan in allowed} == {1, 2, 3}
    others = list(plans(PREFIX))
    assert not all(map(runs, others))
    # Plans that it runs are among the others as well, and none of them is better.
    best_s = min(plan.step_s for plan in allowed)
    assert best_s <= min(plan.step_s for plan in others if runs(plan)) * (1 + 1e-9)
    assert min(plan.step_s for plan in others) < best_s


def test_a_model_limits_what_a_program_runs() -> None:
    tied = replace(model(), tied_parameters=1)
    assert TARGETS["torchtitan"].space_of(tied).pp == (1,)
    assert "full" not in TARGETS["megatron"].space_of(tied).sharding
    with pytest.raises(ConfigError, match=r"several encoders \(vision, audio\)"):
        TARGETS["megatron"].space_of(two_encoders())


def test_heads_are_divided_as_the_program_does() -> None:
    small = model()
    (encoder,) = small.encoders
    wide = replace(small, encoders=(replace(encoder, heads=6),))

    def divided(module: str, runtime: Runtime) -> list[int]:
        pool = small_pool(8)
        return [tp for tp in (1, 2, 4, 8) if divides_heads(wide, module, tp, pool, runtime)]

    megatron, torchtitan = (target.space.runtime for target in TARGETS.values())
    # 8 heads and 4 of keys and values, which more ranks have copies of.
    assert divided("backbone", ANY) == divided("backbone", megatron) == [1, 2, 4, 8]
    assert divided("backbone", torchtitan) == [1, 2, 4]
    # 6 heads of a tower, which the planner pads to 8.
    assert divided("encoder", ANY) == [1, 2, 4, 8]
    assert divided("encoder", megatron) == divided("encoder", torchtitan) == [1, 2]


def test_experts_are_divided_as_the_program_does() -> None:
    small = replace(model(), num_experts=4)
    modules, pool = ("encoder", "backbone"), small_pool(8)

    def found(name: str) -> set[tuple[int, str]]:
        """`tp` and sharding of meshes with expert parallelism."""
        shapes = backbone_shapes(
            small, TARGETS[name].space, pool, gpus=8, blocks=6, modules=modules
        )
        return {(shape.mesh.tp, shape.sharding) for shape in shapes if shape.mesh.ep > 1}

    assert found("torchtitan") == {(1, "full")}
    kinds = ("replicated", "optimizer")
    assert found("megatron") == {(tp, kind) for tp in (1, 2, 4) for kind in kinds}
