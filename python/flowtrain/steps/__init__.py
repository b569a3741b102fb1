"""The plan of a step, fixed before it runs: plain data, and pure functions that build it."""

from flowtrain.steps.build import Layout, build_step
from flowtrain.steps.passes import Passes
from flowtrain.steps.space import Space, SpaceError, SpaceNeed
from flowtrain.steps.step import (
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
    "Passes",
    "PlannedImage",
    "Space",
    "SpaceError",
    "SpaceNeed",
    "StepPlan",
    "build_step",
]
