"""From samples of unequal cost to balanced microbatches, by the core's schedulers."""

from flowtrain.packing.slots import PackingError, fewest_slots

__all__ = ["PackingError", "fewest_slots"]
