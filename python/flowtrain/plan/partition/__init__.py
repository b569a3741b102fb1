"""Cuts of a model into pipeline stages, with the recomputation of each stage."""

from flowtrain.plan.partition.interface import POLICIES, NoPartitionError, Partition, partition
from flowtrain.plan.partition.layers import LEVELS, Layers, Level, Tap
from flowtrain.plan.partition.replay import replay
from flowtrain.plan.partition.stages import Stage
from flowtrain.plan.partition.uneven import replay_uneven

__all__ = [
    "LEVELS",
    "POLICIES",
    "Layers",
    "Level",
    "NoPartitionError",
    "Partition",
    "Stage",
    "Tap",
    "partition",
    "replay",
    "replay_uneven",
]
