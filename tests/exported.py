"""Plans with one layout for the whole model, for tests of what is written for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flowtrain.plan.plan_file import PlanFile, PlannedModule
from flowtrain.plan.result import Layout, Plan, StageLayout
from tests import plans
from tests.plans import module_plan, plan, plan_file

TOWER = ("model.visual.patch_embed", "model.visual.blocks.0", "model.visual.blocks.1")
IN_FRONT = (*TOWER, "model.visual.merger", "model.language_model.embed_tokens")
BEHIND = ("model.language_model.norm", "lm_head")

RUN = replace(plans.RUN, microbatch_tokens=8498, logit_bytes=1 << 30)


def prefix(
    blocks: Sequence[int],
    *,
    again: Sequence[str] | None = None,
    of: Plan | None = None,
    **sizes: Any,
) -> PlanFile:
    """A plan of mode `prefix`.

    Args:
        blocks: Blocks of the decoder on each stage.
        again: Recomputation of each stage; None for none.
        of: The plan, for one of another mode.
        sizes: Sizes of the layout but for `pp`.
    """
    ends = [sum(blocks[: n + 1]) for n in range(len(blocks))]
    stages = [
        [f"model.language_model.layers.{n}" for n in range(end - own, end)]
        for own, end in zip(blocks, ends, strict=True)
    ]
    stages[0] = [*IN_FRONT, *stages[0]]
    stages[-1] = [*stages[-1], *BEHIND]
    return file_of(stages, again or ["none"] * len(blocks), of=of, **sizes)


def file_of(
    stages: Sequence[Sequence[str]], again: Sequence[Any], of: Plan | None = None, **sizes: Any
) -> PlanFile:
    """A plan of mode `prefix` with the layers of each stage by name."""
    layout = Layout(
        pp=len(stages),
        stages=tuple(
            StageLayout(first=0, end=len(names), recompute=level)
            for names, level in zip(stages, again, strict=True)
        ),
        **sizes,
    )
    recomputed = [
        name
        for names, level in zip(stages, again, strict=True)
        for name in names
        if level == "full" and ("blocks." in name or "layers." in name)
    ]
    found = of or plan(
        "prefix", module_plan("model", layout), microbatches=6, microbatch_tokens=8498
    )
    module = PlannedModule(
        module="model",
        mesh={},
        stages=tuple(tuple(names) for names in stages),
        recomputed=tuple(recomputed),
    )
    return plan_file(found, "0", RUN, modules=(module,))
