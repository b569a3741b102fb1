"""Accelerators and nodes that are known by name."""

from __future__ import annotations

import difflib

from flowtrain.cost.accelerators import ACCELERATORS, Accelerator
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.cluster.groups import NodeGroup

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
