"""Cuts of a model into pipeline stages, with the recomputation of each stage."""

from flowtrain.plan.partition.replay import replay

__all__ = ["replay"]
