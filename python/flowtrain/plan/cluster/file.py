"""Clusters from YAML files, for links and accelerators that no preset has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowtrain.config.checks import ConfigError, positive, require
from flowtrain.config.tree import build, read_tree
from flowtrain.cost.accelerators import ACCELERATORS, Accelerator
from flowtrain.cost.timing import (
    ATTENTION,
    LINEAR,
    Efficiency,
    attention_efficiency,
    linear_efficiency,
)
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.cluster.groups import Cluster, NodeGroup
from flowtrain.plan.cluster.known import accelerator_named, node_of

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFields:
    """An accelerator that FlowTrain does not know, or one with other figures."""

    name: str
    """Name, to which `groups.gpu` refers."""
    memory_gib: float
    """Memory in GiB as the driver reports it."""
    bf16_tflops: float
    """Peak in dense bfloat16, 1e12 FLOP/s."""
    hbm_gb_per_s: float
    """Peak rate of its memory, 1e9 bytes/s."""
    source: str
    """Where the figures are from; the report of a plan says it."""
    linear_efficiency: float | None = None
    """Share of the peak that very large products with a weight reach in training."""
    attention_efficiency: float | None = None
    """Share of the peak that attention to very many keys reaches."""

    def __post_init__(self) -> None:
        positive(
            gpus__memory_gib=self.memory_gib,
            gpus__bf16_tflops=self.bf16_tflops,
            gpus__hbm_gb_per_s=self.hbm_gb_per_s,
        )
        for name in ("linear_efficiency", "attention_efficiency"):
            value = getattr(self, name)
            require(
                value is None or 0 < value <= 1,
                f"gpus: {self.name}: {name}={value} must be above 0 and at most 1",
            )

    @property
    def accelerator(self) -> Accelerator:
        return Accelerator(
            name=self.name,
            memory_bytes=int(self.memory_gib * _GIB),
            bf16_flops=self.bf16_tflops * 1e12,
            hbm_bytes_per_s=self.hbm_gb_per_s * 1e9,
            source=self.source,
            linear=self._efficiency(self.linear_efficiency, linear_efficiency, LINEAR),
            attention=self._efficiency(self.attention_efficiency, attention_efficiency, ATTENTION),
        )

    def _efficiency(
        self, given: float | None, of: Callable[[float, str], Efficiency], unknown: Efficiency
    ) -> Efficiency:
        return unknown if given is None else of(given, self.source)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFields:
    """One direction of a link, per GPU, while all GPUs of the node use theirs."""

    latency_us: float
    """Time of an empty message in microseconds."""
    gb_per_s: float
    """Rate of a long message, 1e9 bytes/s."""

    @property
    def link(self) -> Link:
        return Link(latency_s=self.latency_us * 1e-6, bytes_per_s=self.gb_per_s * 1e9)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFields:
    """Equal nodes."""

    nodes: int
    """Number of nodes."""
    gpus_per_node: int
    """GPUs of each node."""
    gpu: str
    """Name of a known type, or of one in `gpus`."""
    inside: LinkFields | None = None
    """Link between two GPUs of a node; that of the known type by default."""
    between: LinkFields | None = None
    """Link between GPUs of two nodes; that of the known type by default."""
    source: str | None = None
    """Where the figures of the links are from; needed with `inside` or `between`."""

    def __post_init__(self) -> None:
        positive(groups__nodes=self.nodes, groups__gpus_per_node=self.gpus_per_node)
        require(
            self.source is not None or self.inside is self.between is None,
            f"groups: {self.gpu}: inside and between need a source: say where the figures of the "
            "links are from",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFields:
    """A cluster file."""

    groups: tuple[GroupFields, ...]
    """Groups of nodes, each of another type of GPU."""
    gpus: tuple[GpuFields, ...] = ()
    """Types of GPUs that FlowTrain does not know."""

    def __post_init__(self) -> None:
        names = [gpu.name for gpu in self.gpus]
        for name in names:
            require(
                names.count(name) == 1 and name not in ACCELERATORS,
                f"gpus: {name} is described twice, or known already; give it another name",
            )


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    Raises:
        ConfigError: A field is unknown, missing, or has an unusable value.
        OSError: The file cannot be read.
    """
    fields = build(ClusterFields, read_tree(path), source=str(path))
    own = {gpu.name: gpu.accelerator for gpu in fields.gpus}
    try:
        return Cluster(groups=tuple(_group(each, own) for each in fields.groups))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _group(fields: GroupFields, own: dict[str, Accelerator]) -> NodeGroup:
    if fields.inside is not None and fields.between is not None:
        inside, between = fields.inside.link, fields.between.link
        source = fields.source
    elif fields.gpu in own:
        raise ConfigError(
            f"groups: {fields.gpu}: inside and between are missing; only the links of known types "
            "have defaults"
        )
    else:
        known = node_of(fields.gpu)
        inside = fields.inside.link if fields.inside else known.topology.inside
        between = fields.between.link if fields.between else known.topology.between
        source = "; otherwise ".join(filter(None, (fields.source, known.source)))
    assert source is not None
    return NodeGroup(
        nodes=fields.nodes,
        gpu=own.get(fields.gpu) or accelerator_named(fields.gpu, *own),
        topology=Topology(devices_per_node=fields.gpus_per_node, inside=inside, between=between),
        source=source,
    )
