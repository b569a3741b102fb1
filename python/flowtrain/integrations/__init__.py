"""FlowTrain inside the trainers of others."""

from flowtrain.integrations.trainer import pack_batches

__all__ = ["pack_batches"]
