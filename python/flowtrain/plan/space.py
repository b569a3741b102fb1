"""Which plans are searched, on which machines, and the rules by which they are priced."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, get_args

from flowtrain.config.parallel import Sharding
from flowtrain.cost.communication import Mesh
from flowtrain.cost.timing import Timing
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.partition import LEVELS, Level
from flowtrain.plan.result import Mode
from flowtrain.plan.runtime import ANY, Runtime

MODES: tuple[Mode, ...] = get_args(Mode)
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
RECOMPUTE: tuple[Level, ...] = ("none", "full")

EXPOSED_SHARE = 0.5
"""Share of the time of overlapped collectives that computation never hides, since both compete for
multiprocessors and memory.

Source: arXiv 2507.03114 (4 A100, H100, MI210 or MI250, GPT and Llama): computation is 19 % slower
beside collectives in the mean, 40 % at most, and doing one after the other takes only 10 % longer.
With shares of 0.4 to 0.8 the prices fit the published training of `benchmarks/cost/trained.py`
best.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPool:
    """Equal GPUs.

    Attributes:
        gpu_type: Name of their type.
        gpus: How many there are.
        topology: GPUs of a node, and links inside and between nodes.
        memory_bytes: Memory of a GPU.
        memory_bytes_per_s: Peak rate of that memory.
        flops_per_s: Peak in the dtype of training, the denominator of MFU.
        timing: How long layers take.
        timing_source: Where these times are from.
        between_modules: Link of a GPU to those of other modules on another type of GPUs; None for
            the pool's own link, inside a node if it has one, and otherwise between nodes.
    """

    gpu_type: str
    gpus: int
    topology: Topology
    memory_bytes: int
    memory_bytes_per_s: float
    flops_per_s: float
    timing: Timing
    timing_source: str
    between_modules: Link | None = None

    def __post_init__(self) -> None:
        for name in ("gpus", "memory_bytes", "memory_bytes_per_s", "flops_per_s"):
            value = getattr(self, name)
            if not 1 <= value < math.inf:
                raise ValueError(
                    f"pool '{self.gpu_type}': {name}={value}: it must be at least 1, and finite"
                )

    @property
    def rows_link(self) -> Link:
        """Link of a GPU to those of other modules."""
        one_node = self.gpus <= self.topology.devices_per_node
        own = self.topology.inside if one_node else self.topology.between
        return self.between_modules or own

    def rows_s(self, num_bytes: float) -> float:
        """Seconds in which a GPU sends rows to other modules, or receives them."""
        return self.rows_link.seconds(num_bytes)

    def budgets(self, *, every: bool = False) -> list[int]:
        """Numbers of GPUs that a module may have: some of a node, or whole nodes.

        Args:
            every: Whether it may have any number.
        """
        node = self.topology.devices_per_node
        if every:
            return [*range(1, self.gpus + 1)]
        return [*range(1, min(node, self.gpus + 1)), *range(node, self.gpus + 1, node)]

    def shares(self, *, every: bool = False) -> list[int]:
        """Numbers of GPUs that a module beside others may have.

        As `budgets`, and all GPUs but for some of a node, which others have.

        Args:
            every: Whether it may have any number.
        """
        node = self.topology.devices_per_node
        rest = range(max(1, self.gpus - node + 1), self.gpus) if self.gpus > node else []
        return sorted({*self.budgets(every=every), *rest})


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Share of the host for each GPU, which prices states in host memory (`optim.offload`).

    Attributes:
        link_bytes_per_s: Rate of the link in one direction: PCIe 4.0 x16, 31.5 GB/s, of which 80 %
            are assumed to be reached.
        memory_bytes_per_s: Peak rate of host memory: that of two EPYC 7742 with eight channels of
            DDR4-3200 each, 204.8 GB/s in their data sheet, for eight GPUs, as in a DGX A100.
    """

    link_bytes_per_s: float = 25e9
    memory_bytes_per_s: float = 51.2e9


class Fixed(Protocol):
    """A choice that layouts of a module must have made."""

    @property
    def module(self) -> str:
        """`backbone`, or name of an encoder; in mode `prefix` it applies to all modules."""
        ...

    @property
    def field(self) -> str:
        """`tp`, `cp`, `pp`, `ep`, `dp`, `sharding`, or `shard_ranks`."""
        ...

    @property
    def value(self) -> int | str: ...

    def allows(self, mesh: Mesh, sharding: str) -> bool:
        """Whether a layout has made it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Plans that are searched. A size that does not divide what it shares out is left out.

    Attributes:
        modes: Where encoders may run.
        tp: Sizes of tensor parallelism, for all modules; only within a node.
        cp: Sizes of context parallelism of the backbone.
        pp: Pipeline stages of the backbone.
        ep: Sizes of expert parallelism of the backbone.
        sharding: What replicas may share out; `full` only without pipeline stages.
        recompute: What the blocks of a stage may compute again. With `none` among several levels,
            only where memory asks for it: of a single stage as few of its first blocks as fit, and
            of several each all of them or none.
        microbatches: Microbatches of a replica per step; None tries 1, 2, 3, 4, 6, 8, 12, 16, ...
        chunks: Whether colocated plans may take some microbatches at a time, with the encoders'
            passes of these, in place of all of a step; without pipeline stages.
        fixed: Choices that the layouts must have made.
        runtime: What the program that trains can run of them.
        offload: Whether states that replicas share out are in host memory; one replica, too, may
            then be sharded.
    """

    modes: tuple[Mode, ...] = MODES
    tp: tuple[int, ...] = (1, 2, 4, 8)
    cp: tuple[int, ...] = (1, 2, 4, 8)
    pp: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    ep: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    sharding: tuple[Sharding, ...] = SHARDINGS
    recompute: tuple[Level, ...] = RECOMPUTE
    microbatches: tuple[int, ...] | None = None
    chunks: bool = True
    fixed: tuple[Fixed, ...] = ()
    runtime: Runtime = ANY
    offload: bool = False

    def __post_init__(self) -> None:
        names = ("modes", "tp", "cp", "pp", "ep", "sharding", "recompute", "microbatches")
        for name in names:
            values = getattr(self, name)
            if values is None:
                continue
            if not values:
                raise ValueError(f"{name}={values}: give at least one value")
            for value in values:
                if isinstance(value, int) and value < 1:
                    raise ValueError(f"{name}={value}: it must be at least 1")
        choices = (("modes", MODES), ("sharding", SHARDINGS), ("recompute", LEVELS))
        for name, known in choices:
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"{name}='{value}': choose from {', '.join(known)}")

    def allows(self, mesh: Mesh, sharding: str, *, modules: tuple[str, ...]) -> bool:
        """Whether a layout of some modules can run, and has made the choices fixed for them."""
        own = (fixed for fixed in self.fixed if fixed.module in modules)
        return self.runtime.allows(mesh, sharding) and all(
            fixed.allows(mesh, sharding) for fixed in own
        )

    def shard_ranks_of(self, modules: tuple[str, ...]) -> int | None:
        """Replicas of some modules that divide one copy, if that is fixed; otherwise all do."""
        found = [
            fixed.value
            for fixed in self.fixed
            if fixed.module in modules and fixed.field == "shard_ranks"
        ]
        return int(found[0]) if found else None

    @property
    def levels(self) -> tuple[tuple[Level, ...], ...]:
        """Sets of levels, of which the blocks of a module have those of one."""
        if self.runtime.one_level:
            return tuple((level,) for level in self.recompute)
        return (self.recompute,)

    @property
    def every_budget(self) -> bool:
        """Whether modules may have any number of GPUs, since that of their replicas is fixed."""
        return any(fixed.field == "dp" for fixed in self.fixed)

    def chunk_slots_of(self, microbatches: int, stages: int) -> list[int]:
        """Numbers of microbatches to try that are taken at a time, ascending, but for all.

        Args:
            microbatches: Microbatches of a replica per step.
            stages: Pipeline stages, which would run empty in each chunk.
        """
        if not self.chunks or stages > 1:
            return []
        return [
            1 << power for power in range(microbatches.bit_length()) if 1 << power < microbatches
        ]

    def microbatches_of(self, batch: int) -> list[int]:
        """Numbers of microbatches to try, at most the samples of a step.

        Raises:
            ValueError: All that are given are more.
        """
        if self.microbatches is not None:
            found = sorted({count for count in self.microbatches if count <= batch})
            if not found:
                raise ValueError(
                    f"microbatches={min(self.microbatches)}: a step has batch={batch} samples; "
                    "give at most as many microbatches"
                )
            return found
        powers = [1 << power for power in range(batch.bit_length())]
        return sorted({count for p in powers for count in (p, 3 * p // 2) if count <= batch})


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Constants of the prices that no data sheet has.

    Attributes:
        headroom: Maximum tokens of a microbatch over its mean: room to balance samples.
        reserve_share: Share of the memory of a GPU that a plan leaves free: for the context, the
            libraries' buffers and fragments.
        exposed_share: Share of the time of overlapped collectives that computation never hides.
        host: The host's side of a GPU.
    """

    headroom: float = 1.05
    reserve_share: float = 0.1
    exposed_share: float = EXPOSED_SHARE
    host: Host = field(default_factory=Host)

    def __post_init__(self) -> None:
        if not 1 <= self.headroom < math.inf:
            raise ValueError(f"headroom={self.headroom}: it must be at least 1, and finite")
        for name in ("reserve_share", "exposed_share"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name}={value}: it must be from 0 to 1")

    def usable(self, pool: GpuPool) -> int:
        """Bytes of a GPU that a plan may use."""
        return int((1 - self.reserve_share) * pool.memory_bytes)
