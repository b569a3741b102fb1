"""Where the ranks of a module lie, for the times of its collectives."""

from __future__ import annotations

from dataclasses import replace

from flowtrain.cost.topology import Group, Link, Topology


class Network:
    """Links between the ranks of a module that has its nodes for itself.

    A module that fits into a node lies in one. Where the ranks of a group do not divide nodes
    evenly, all of its messages are taken to go between nodes.

    Args:
        topology: Of the pool.
        gpus: Ranks of the module.
    """

    def __init__(self, topology: Topology, gpus: int) -> None:
        devices = min(topology.devices_per_node, gpus)
        self._even = replace(topology, devices_per_node=devices)
        self._apart = replace(topology, devices_per_node=1)

    def around(self, group: Group) -> Topology:
        """The topology for a collective of a group."""
        try:
            self._even.ranks_per_node(group)
        except ValueError:
            return self._apart
        return self._even

    def slowest(self, group: Group) -> Link:
        """The slowest link of a group."""
        return self.around(group).slowest(group)
