"""What a step is, decided before it runs: plain data and the pure functions that make it."""

from flowtrain.plan.build import Layout, build_step
from flowtrain.plan.space import Space, SpaceError, SpaceNeed
from flowtrain.plan.step import Document, EncoderItem, StepPlan

__all__ = [
    "Document",
    "EncoderItem",
    "Layout",
    "Space",
    "SpaceError",
    "SpaceNeed",
    "StepPlan",
    "build_step",
]
