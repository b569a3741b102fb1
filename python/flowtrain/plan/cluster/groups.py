"""Clusters: groups of equal nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flowtrain.cost.accelerators import Accelerator
from flowtrain.cost.topology import Link, Topology

_MAX_GPUS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """Equal nodes.

    Attributes:
        nodes: Number of nodes.
        gpu: Type of their accelerators.
        topology: Accelerators of a node, and links inside and between nodes.
        source: Where the figures of the links are from.
    """

    nodes: int
    gpu: Accelerator
    topology: Topology
    source: str

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"nodes={self.nodes}: it must be at least 1")

    @property
    def gpus(self) -> int:
        """Accelerators of all nodes."""
        return self.nodes * self.topology.devices_per_node

    def with_gpus(self, gpus: int) -> NodeGroup:
        """The group with another number of accelerators: part of one node, or whole nodes.

        Raises:
            ValueError: They are neither.
        """
        per_node = self.topology.devices_per_node
        if 1 <= gpus <= per_node:
            return replace(self, nodes=1, topology=replace(self.topology, devices_per_node=gpus))
        if gpus < 1 or gpus % per_node:
            raise ValueError(
                f"gpus={gpus}: nodes of {self.gpu.name} have {per_node} GPUs; give at most "
                f"{per_node}, or a multiple"
            )
        return replace(self, nodes=gpus // per_node)

    def __str__(self) -> str:
        return f"{self.nodes}x{self.topology.devices_per_node}x{self.gpu.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Groups of nodes with different accelerators; each group is a pool of equal ones.

    Attributes:
        groups: The groups.
    """

    groups: tuple[NodeGroup, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("cluster: groups=[]: give at least one group of nodes")
        if self.gpus > _MAX_GPUS:
            raise ValueError(
                f"cluster: {self.gpus} GPUs are more than the {_MAX_GPUS} that are planned for"
            )
        names = [group.gpu.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"cluster '{self}': {name} is in more than one group; put equal nodes into "
                    "one group, and give accelerators of other nodes a name of their own"
                )

    @property
    def gpus(self) -> int:
        """Accelerators of all groups."""
        return sum(group.gpus for group in self.groups)

    @property
    def pools(self) -> dict[str, int]:
        """Accelerators of each group, by the name of their type."""
        return {group.gpu.name: group.gpus for group in self.groups}

    @property
    def between_modules(self) -> Link:
        """Link of a GPU to those of other modules.

        It is that inside of a node if there is no other one. Otherwise modules are taken to be on
        nodes of their own, which the slower one of the groups' links connects.
        """
        topologies = [group.topology for group in self.groups]
        if len(self.groups) == self.groups[0].nodes == 1:
            return topologies[0].inside
        links = [topology.between for topology in topologies]
        return Link(
            latency_s=max(link.latency_s for link in links),
            bytes_per_s=min(link.bytes_per_s for link in links),
        )

    def __str__(self) -> str:
        return "+".join(map(str, self.groups))
