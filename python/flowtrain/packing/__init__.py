"""Balanced microbatches of samples of unequal cost, by the schedulers of the core."""

from flowtrain.packing.microbatch import Microbatch, microbatches_of
from flowtrain.packing.sizes import Sizes, SizeSource
from flowtrain.packing.slots import PackingError, fewest_slots
from flowtrain.packing.steps import FormedStep, StepBuilder, StepShape

__all__ = [
    "FormedStep",
    "Microbatch",
    "PackingError",
    "SizeSource",
    "Sizes",
    "StepBuilder",
    "StepShape",
    "fewest_slots",
    "microbatches_of",
]
