"""Clusters from a short text such as `32x8xH100`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from flowtrain.plan.cluster.file import read_cluster
from flowtrain.plan.cluster.groups import Cluster, NodeGroup
from flowtrain.plan.cluster.known import node_of
from flowtrain.plan.cluster.local import local_cluster

_GROUP = re.compile(r"(-?\d+)x(-?\d+)x([\w-]+)")


def parse_cluster(text: str) -> Cluster:
    """Read the description of a cluster.

    Args:
        text: `NODESxGPUSxTYPE` with the GPUs of each node, such as `32x8xH100`; several groups are
            joined by `+`. Or the path of a YAML file, which ends in `.yaml` or `.yml`; or `local`
            for the GPUs of this machine.

    Raises:
        ValueError: The text has another form, a number is below 1, or a type is not known.
        OSError: The file cannot be read.
    """
    if text == "local":
        return local_cluster()
    if text.endswith((".yaml", ".yml")):
        return read_cluster(Path(text))
    try:
        groups = tuple(map(_parse_group, text.split("+")))
    except ValueError as error:
        raise ValueError(f"cluster '{text}': {error}") from error
    return Cluster(groups=groups)


def _parse_group(text: str) -> NodeGroup:
    match = _GROUP.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"'{text}' has another form than NODESxGPUSxTYPE, such as 32x8xH100 for 32 nodes of "
            "8 GPUs; join several groups by +, or give a YAML file"
        )
    nodes, gpus, node = int(match[1]), int(match[2]), node_of(match[3])
    per_node = node.topology.devices_per_node
    if not 1 <= gpus <= per_node:
        raise ValueError(
            f"GPUs of a node={gpus}: it must be from 1 to {per_node} for {node.gpu.name}; describe "
            "larger nodes in a cluster file"
        )
    return replace(node.with_gpus(gpus), nodes=nodes)
