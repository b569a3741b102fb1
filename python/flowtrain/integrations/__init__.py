"""Integrations of FlowTrain into other trainers."""

from flowtrain.integrations.decouple import decouple
from flowtrain.integrations.trainer import pack_batches

__all__ = ["decouple", "pack_batches"]
