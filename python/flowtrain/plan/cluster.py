"""Clusters: groups of equal nodes, from a short text such as `32x8xH100`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from flowtrain.cost.accelerators import ACCELERATORS, Accelerator
from flowtrain.cost.topology import Link, Topology


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


REACHED_SHARE = 0.94
"""Share of the rate of a network adapter that NCCL reaches: 46 to 48 of 50 GB/s (nccl-tests, issue
290)."""


def _hgx(gpu: str, links: int, link_gb_per_s: float, network_gbit_per_s: float) -> NodeGroup:
    """A node of 8 GPUs that a switch connects, each with a network adapter of its own.

    The latencies are NCCL's for a step of a ring with its Simple protocol, and the rate of an
    NVLink is what NCCL expects to reach: below that of the data sheet, 25 or 50 GB/s.
    """
    return NodeGroup(
        nodes=1,
        gpu=ACCELERATORS[gpu],
        topology=Topology(
            devices_per_node=8,
            inside=Link(latency_s=3.4e-6, bytes_per_s=links * link_gb_per_s * 1e9),
            between=Link(latency_s=14e-6, bytes_per_s=REACHED_SHARE * network_gbit_per_s * 1e9 / 8),
        ),
        source=f"inside: {links} NVLinks of {link_gb_per_s:g} GB/s, constants of NCCL "
        f"(src/graph/topo.h); between: one {network_gbit_per_s:g} Gb/s adapter per GPU, NVIDIA DGX "
        f"data sheet, of whose rate NCCL reaches {REACHED_SHARE:.0%} (nccl-tests, issue 290); "
        "latencies: ring steps in NCCL (src/graph/tuning.cc)",
    )


_NODES = (
    _hgx("A100-40GB", 12, 20, 200),
    _hgx("A100-80GB", 12, 20, 200),
    _hgx("H100", 18, 20.6, 400),
    _hgx("H200", 18, 20.6, 400),
    _hgx("B200", 18, 40.1, 400),
    NodeGroup(
        nodes=1,
        gpu=ACCELERATORS["Ascend-910B2"],
        topology=Topology(
            devices_per_node=8,
            inside=Link(latency_s=3.4e-6, bytes_per_s=7 * 28e9),
            between=Link(latency_s=14e-6, bytes_per_s=25e9),
        ),
        source="inside: 7 HCCS links of 28 GB/s used together; between: one 200 Gb/s adapter per "
        "NPU; as stated for the Atlas 800T A2, not checked against a data sheet; latencies: those "
        "of NCCL are assumed",
    ),
)
NODES: dict[str, NodeGroup] = {node.gpu.name: node for node in _NODES}
"""One node of each type whose links are known, by the name of its accelerator."""

_ALIASES = {"a100": "A100-80GB", "ascend-910b": "Ascend-910B2", "910b": "Ascend-910B2"}
_MAX_GPUS = 1 << 16
_GROUP = re.compile(r"(-?\d+)x(-?\d+)x([\w-]+)")


def accelerator_named(name: str, *others: str) -> Accelerator:
    """An accelerator by its name in any case; `A100` is the one with 80 GB.

    Args:
        name: The name.
        others: Further names that the message of the error lists.

    Raises:
        ValueError: It is not known.
    """
    names = {known.lower(): known for known in ACCELERATORS} | _ALIASES
    if (known := names.get(name.lower())) is not None:
        return ACCELERATORS[known]
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[near[0]]}? " if near else ""
    raise ValueError(
        f"GPU '{name}' is not known; {hint}known are {', '.join((*others, *ACCELERATORS))}; "
        "describe another in a cluster file"
    )


def node_of(gpu: str) -> NodeGroup:
    """One node with accelerators of a known type, and their links.

    Raises:
        ValueError: The type is not known, or its links are not.
    """
    name = accelerator_named(gpu).name
    if name not in NODES:
        raise ValueError(
            f"GPU '{name}': the links of its nodes differ from server to server; give them in a "
            "cluster file"
        )
    return NODES[name]


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
        from flowtrain.plan.cluster_local import local_cluster

        return local_cluster()
    if text.endswith((".yaml", ".yml")):
        from flowtrain.plan.cluster_file import read_cluster

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
