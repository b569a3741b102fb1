"""Clusters: from a short text, from a file, or the GPUs of this machine."""

from flowtrain.plan.cluster.groups import Cluster, NodeGroup
from flowtrain.plan.cluster.text import parse_cluster

__all__ = ["Cluster", "NodeGroup", "parse_cluster"]
