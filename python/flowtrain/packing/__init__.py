"""From samples of unequal cost to balanced microbatches, by the core's schedulers."""

from flowtrain.packing.microbatch import Microbatch, microbatches_of
from flowtrain.packing.sizes import Sizes, SizeSource
from flowtrain.packing.slots import PackingError, fewest_slots
from flowtrain.packing.steps import FormedStep, StepFormer, StepShape

__all__ = [
    "FormedStep",
    "Microbatch",
    "PackingError",
    "SizeSource",
    "Sizes",
    "StepFormer",
    "StepShape",
    "fewest_slots",
    "microbatches_of",
]
