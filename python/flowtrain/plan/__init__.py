"""The plan of a step, fixed before it runs: plain data, and pure functions that build it."""

from flowtrain.plan.build import Layout, build_step
from flowtrain.plan.space import Space, SpaceError, SpaceNeed
from flowtrain.plan.step import (
    Balance,
    Document,
    EncoderItem,
    Packing,
    PlannedImage,
    StepPlan,
)

__all__ = [
    "Balance",
    "Document",
    "EncoderItem",
    "Layout",
    "Packing",
    "PlannedImage",
    "Space",
    "SpaceError",
    "SpaceNeed",
    "StepPlan",
    "build_step",
]
