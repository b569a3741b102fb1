"""A cluster of equal nodes, and how ranks of a group lie in it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One direction of a path between two devices, in the alpha-beta model.

    Attributes:
        latency_s: Time of an empty message (alpha).
        bytes_per_s: Rate of a long one (1 / beta).
    """

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and 0 < self.bytes_per_s < math.inf):
            raise ValueError(
                f"link: latency_s={self.latency_s} must not be negative, and "
                f"bytes_per_s={self.bytes_per_s} must be above 0; both must be finite"
            )

    def seconds(self, num_bytes: float) -> float:
        """Time of a message."""
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks of a mesh axis.

    Attributes:
        size: Number of ranks.
        stride: Distance of neighbours: the product of the sizes of the axes that vary faster.
    """

    size: int
    stride: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or self.stride < 1:
            raise ValueError(f"group: size={self.size} and stride={self.stride} must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Nodes with the same number of devices; rank r is device r % devices_per_node.

    Attributes:
        devices_per_node: Devices of a node.
        inside: Link between two devices of a node.
        between: Link between two devices of different nodes, while all devices of a node use
            theirs: the share of one device of what the node can send.
    """

    devices_per_node: int
    inside: Link
    between: Link

    def __post_init__(self) -> None:
        if self.devices_per_node < 1:
            raise ValueError(
                f"topology: devices_per_node={self.devices_per_node} must be at least 1"
            )

    def ranks_per_node(self, group: Group) -> int:
        """Ranks of a group that lie in one node.

        Raises:
            ValueError: They are not the same number for every group of the mesh axis and every
                node.
        """
        devices, extent = self.devices_per_node, group.size * group.stride
        if group.size == 1 or group.stride >= devices:
            return 1
        if devices % extent == 0:
            return group.size
        if extent % devices or devices % group.stride:
            raise ValueError(
                f"group: size={group.size} with stride={group.stride} does not fit evenly into "
                f"nodes of devices_per_node={devices}; choose sizes of mesh axes that divide a "
                "node or that nodes divide, or give the devices of a node that are used"
            )
        return devices // group.stride

    def nodes(self, group: Group) -> int:
        """Nodes over which a group lies.

        Raises:
            ValueError: As for `ranks_per_node`.
        """
        return group.size // self.ranks_per_node(group)

    def ring_rate(self, group: Group) -> float:
        """Bytes per second from each rank of a ring to the next.

        Libraries run several rings at once, which leave a node at different ranks: together they
        have the adapters of all ranks of the group in the node, and no more than goes between two
        of them. Groups side by side have the adapters of other ranks.

        Source: NCCL, src/graph/search.cc; its issues 1218 and 1368 have measurements.
        """
        near = self.ranks_per_node(group)
        if near == group.size:
            return self.inside.bytes_per_s
        return min(self.inside.bytes_per_s, near * self.between.bytes_per_s)

    def slowest(self, group: Group) -> Link:
        """The slowest link from a rank of a group to the next."""
        return self.inside if self.ranks_per_node(group) == group.size else self.between
