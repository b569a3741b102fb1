"""Where the ranks of a module lie, for the times of its collectives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy

from flowtrain.cost.topology import Group, Link, Topology


class Network:
    """Links between the ranks of a module that has its nodes for itself.

    A module that fits into a node lies in one. If a group divides nodes unevenly, every node is
    priced as the one with the fewest ranks: the ring is no faster there.

    Args:
        topology: Of the pool.
        gpus: Ranks of the module.
    """

    def __init__(self, topology: Topology, gpus: int) -> None:
        self._gpus = gpus
        self._even = replace(topology, devices_per_node=min(topology.devices_per_node, gpus))

    def around(self, group: Group) -> Topology:
        """The topology for a collective of a group."""
        try:
            self._even.ranks_per_node(group)
        except ValueError:
            fewest = _fewest(group, self._gpus, self._even.devices_per_node)
            return replace(self._even, devices_per_node=fewest * group.stride)
        return self._even

    def slowest(self, group: Group) -> Link:
        """The slowest link of a group."""
        return self.around(group).slowest(group)


@cache
def _fewest(group: Group, gpus: int, node: int) -> int:
    """Ranks in a node, at most those of any group of the axis in any node that it is in.

    They divide the group.
    """
    nodes = numpy.arange(gpus) // node
    groups = nodes.reshape(-1, group.size, group.stride).swapaxes(1, 2).reshape(-1, group.size)
    fewest = min(int(numpy.unique(each, return_counts=True)[1].min()) for each in groups)
    return max(count for count in range(1, fewest + 1) if group.size % count == 0)
