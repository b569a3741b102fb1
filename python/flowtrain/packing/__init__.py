"""Policies that turn samples of unequal cost into balanced microbatches."""

from flowtrain.packing.balanced import Assignment, PackingError, balance

__all__ = ["Assignment", "PackingError", "balance"]
