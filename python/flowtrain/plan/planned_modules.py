"""The modules of a plan by the names of their layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowtrain.cost.layers import PARTS
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.plan_file import PlannedModule
from flowtrain.plan.result import Layout, ModulePlan, Plan, StageLayout


def planned_modules(
    plan: Plan, model: ModelDescription, trained: Collection[str]
) -> tuple[PlannedModule, ...]:
    """The modules of a plan.

    Args:
        plan: The plan.
        model: Its model, without encoders that have nothing to encode.
        trained: Parts that train.
    """
    return tuple(_module(module, model, trained) for module in plan.modules)


def _module(module: ModulePlan, model: ModelDescription, trained: Collection[str]) -> PlannedModule:
    numbers = model.layers_of(module.module)
    stages = module.layout.stages
    first = min(PARTS.index(part) for part in trained)
    # Without a backward pass, nothing is computed again.
    blocks = [
        number
        for number in numbers
        if model.layers[number].takes is not None
        and PARTS.index(model.layers[number].part) >= first
    ]
    again = [n for stage in stages for n in _again(stage, numbers, blocks)]
    return PlannedModule(
        module=module.module,
        mesh=_mesh(module.layout),
        stages=tuple(_names(numbers[stage.first : stage.end], model) for stage in stages),
        recomputed=_names(again, model),
    )


def _again(stage: StageLayout, numbers: Sequence[int], blocks: Sequence[int]) -> list[int]:
    if stage.recompute == "none":
        return []
    own = [number for number in numbers[stage.first : stage.end] if number in blocks]
    return own[: stage.recompute_layers]


def _names(numbers: Sequence[int], model: ModelDescription) -> tuple[str, ...]:
    return tuple(model.layers[number].name for number in numbers)


def _mesh(layout: Layout) -> dict[str, int]:
    shard = 1 if layout.sharding == "replicated" else layout.shard_ranks or layout.dp
    sizes = {
        "pp": layout.pp,
        "replicate": layout.dp // shard,
        "shard": shard,
        "ep": layout.ep,
        "cp": layout.cp,
        "tp": layout.tp,
    }
    return {name: size for name, size in sizes.items() if size > 1} or {"replicate": 1}
