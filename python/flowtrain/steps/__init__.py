"""The plan of a step, fixed before it runs: plain data, and pure functions that build it."""

from flowtrain.steps.build import Layout, build_step
from flowtrain.steps.correction import CorrectionEvent
from flowtrain.steps.passes import Passes
from flowtrain.steps.space import Space, SpaceError, SpaceNeed
from flowtrain.steps.step import (
    FIRST_EVALUATION,
    Balance,
    Document,
    EncoderItem,
    Packing,
    PlannedImage,
    StepPlan,
    step_name,
)

__all__ = [
    "FIRST_EVALUATION",
    "Balance",
    "CorrectionEvent",
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
    "step_name",
]
