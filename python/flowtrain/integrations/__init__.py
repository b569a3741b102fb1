"""Integrations of FlowTrain into other trainers."""

from flowtrain.integrations.trainer import pack_batches

__all__ = ["pack_batches"]
