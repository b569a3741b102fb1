"""Times of collectives in the alpha-beta model, and of those that a step needs.

Rings move the least bytes that any algorithm can, in steps that grow with the number of ranks. The
latency of trees grows with its logarithm, so that they are faster for short messages; libraries
have them for all-reduce. Over nodes both use the adapters of all ranks in a node
(`Topology.ring_rate`). Sums within switches (SHARP) are left out. What overlaps with computation is
left to the caller.

Source: Thakur, Rabenseifner and Gropp (2005), Optimization of Collective Communication Operations
in MPICH; Patarasuk and Yuan (2009), Bandwidth optimal all-reduce algorithms. `python
benchmarks/bench_cost.py --parts collectives` compares with published measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowtrain.cost.topology import Group, Topology

_HOP = 2.4
"""Latency of a step of a ring or tree in that of its link. With NCCL's latencies (src/graph/
tuning.cc: 3.4 us on NVLink and 14 us on a network) this fits what was published of all-gather and
all-reduce on 2 to 32 nodes; 1 is half of it."""


def all_gather_s(num_bytes: float, group: Group, topology: Topology) -> float:
    """Ring all-gather: of the steps of a part, one less than there are nodes leave a node.

    Args:
        num_bytes: Bytes of the result, which every rank has in the end.
        group: The ranks.
        topology: Where they lie.

    Source of the steps and the rate: NCCL, src/graph/tuning.cc (ncclTopoTuneModel).
    """
    nodes, steps = topology.nodes(group), group.size - 1
    between = nodes - 1
    latency_s = (steps - between) * topology.inside.latency_s + between * topology.between.latency_s
    return _HOP * latency_s + steps * num_bytes / group.size / topology.ring_rate(group)


def reduce_scatter_s(num_bytes: float, group: Group, topology: Topology) -> float:
    """Ring reduce-scatter; the time of the additions is left out.

    Args:
        num_bytes: Bytes of the input of each rank.
        group: The ranks.
        topology: Where they lie.
    """
    return all_gather_s(num_bytes, group, topology)


def all_reduce_s(num_bytes: float, group: Group, topology: Topology) -> float:
    """All-reduce by a ring or a tree, whichever is faster.

    Args:
        num_bytes: Bytes of the input of each rank.
        group: The ranks.
        topology: Where they lie.
    """
    ring_s = reduce_scatter_s(num_bytes, group, topology) + all_gather_s(num_bytes, group, topology)
    return min(ring_s, _tree_all_reduce_s(num_bytes, group, topology))


def _tree_all_reduce_s(num_bytes: float, group: Group, topology: Topology) -> float:
    """Sum up a tree and back down: a chain in each node, and a binary tree of nodes.

    The bytes go in parts of the best size, each of which follows the one before: for parts of c
    bytes, a path of d hops takes (d + bytes / c) (latency + c / rate), which is least as here.

    Source: Sanders, Speck and Traeff (2009), Two-tree algorithms for full bandwidth broadcast,
    reduction and scan; NCCL, src/graph/tuning.cc.
    """
    near, nodes = topology.ranks_per_node(group), topology.nodes(group)
    path_s = (near - 1) * topology.inside.latency_s
    path_s += math.ceil(math.log2(nodes)) * topology.between.latency_s
    sent_s = num_bytes / topology.ring_rate(group)
    return 2 * (math.sqrt(_HOP * path_s) + math.sqrt(sent_s)) ** 2


def all_to_all_s(num_bytes: float, group: Group, topology: Topology) -> float:
    """Pairwise exchange: in each step, every rank sends to another one.

    Args:
        num_bytes: Bytes of the input of each rank, the share that stays with it included.
        group: The ranks.
        topology: Where they lie.
    """
    near = topology.ranks_per_node(group)
    part = num_bytes / group.size
    return (near - 1) * topology.inside.seconds(part) + (
        group.size - near
    ) * topology.between.seconds(part)


def point_to_point_s(num_bytes: float, group: Group, topology: Topology) -> float:
    """A message from a rank of a group to the next; the slowest of the group.

    Args:
        num_bytes: Bytes of the message.
        group: The ranks.
        topology: Where they lie.
    """
    return topology.slowest(group).seconds(num_bytes) if group.size > 1 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """Parallelism of a module. Ranks vary fastest along tp, then cp, dp and pp.

    Attributes:
        tp: Ranks that share each layer, and the tokens between its products (sequence parallelism).
        cp: Ranks that share the tokens of a row.
        dp: Ranks with rows of their own.
        pp: Stages of a pipeline.
        ep: Ranks that share the experts of a layer; neighbours along cp and dp.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "dp", "pp", "ep"):
            if getattr(self, name) < 1:
                raise ValueError(f"mesh: {name}={getattr(self, name)} must be at least 1")
        if self.cp * self.dp % self.ep:
            raise ValueError(
                f"mesh: ep={self.ep} does not divide cp x dp = {self.cp * self.dp}; choose a "
                "divisor"
            )

    @property
    def tp_group(self) -> Group:
        return Group(size=self.tp)

    @property
    def cp_group(self) -> Group:
        return Group(size=self.cp, stride=self.tp)

    @property
    def ep_group(self) -> Group:
        return Group(size=self.ep, stride=self.tp)

    @property
    def replicas(self) -> Group:
        """Ranks that hold the same weights outside of experts."""
        return Group(size=self.cp * self.dp, stride=self.tp)

    @property
    def expert_replicas(self) -> Group:
        """Ranks that hold the same experts."""
        return Group(size=self.cp * self.dp // self.ep, stride=self.tp * self.ep)

    @property
    def pp_group(self) -> Group:
        return Group(size=self.pp, stride=self.tp * self.cp * self.dp)


def tensor_parallel_s(
    tokens: int,
    width: int,
    mesh: Mesh,
    topology: Topology,
    *,
    collectives: int = 4,
    itemsize: int = 2,
) -> float:
    """Forward pass of a layer: the backward pass takes the same time.

    Attention and MLP of a block each gather the tokens of a row and scatter the sums. An embedding
    whose vocabulary is shared out scatters, and an output head gathers.

    Args:
        tokens: Tokens of the row.
        width: Hidden size.
        mesh: Parallelism.
        topology: Where the ranks lie.
        collectives: How often the layer gathers or scatters.
        itemsize: Bytes of a value.

    Source: Korthikanti et al. (2022), Reducing Activation Recomputation in Large Transformer
    Models, section 4.2.2.
    """
    num_bytes = itemsize * tokens * width / mesh.cp
    return collectives * all_gather_s(num_bytes, mesh.tp_group, topology)


def vocabulary_loss_s(targets: float, mesh: Mesh, topology: Topology) -> float:
    """Loss of logits of which each rank of tensor parallelism has a part of the vocabulary.

    Ranks reduce the largest logit of each target, the sum of the exponentials, and the logit of the
    target, in float32. The backward pass needs nothing more.

    Args:
        targets: Target tokens of the row.
        mesh: Parallelism.
        topology: Where the ranks lie.

    Source: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py.
    """
    return 3 * all_reduce_s(4 * targets / mesh.cp, mesh.tp_group, topology)


def context_parallel_s(
    tokens: int,
    kv_width: int,
    mesh: Mesh,
    topology: Topology,
    *,
    kv_heads: int,
    itemsize: int = 2,
) -> float:
    """Forward pass of the attention of a decoder layer: keys and values go round the ring.

    The attention of the block before hides a step that takes no longer. The gradients of keys and
    values go round beside them in the backward pass, which sends twice the bytes.

    Args:
        tokens: Tokens of the row.
        kv_width: Values of the keys of a token: key-value heads x their width.
        mesh: Parallelism.
        topology: Where the ranks lie.
        kv_heads: Key-value heads; ranks of tensor parallelism beyond them repeat one.
        itemsize: Bytes of a value.

    Source: Liu, Zaharia and Abbeel (2023), Ring Attention with Blockwise Transformers.
    """
    step_bytes = 2 * itemsize * tokens * kv_width / (mesh.cp * min(mesh.tp, kv_heads))
    return (mesh.cp - 1) * point_to_point_s(step_bytes, mesh.cp_group, topology)


def expert_parallel_s(
    tokens: int, width: int, chosen: int, mesh: Mesh, topology: Topology, *, itemsize: int = 2
) -> float:
    """Forward pass of a layer with experts: tokens go to them and return.

    The backward pass takes the same time. Tokens are assumed to be spread evenly over experts. Each
    rank of tensor parallelism sends its part of the tokens; `expert_rows_s` is what follows.

    Args:
        tokens: Tokens of the row.
        width: Hidden size.
        chosen: Experts that a token is sent to.
        mesh: Parallelism.
        topology: Where the ranks lie.
        itemsize: Bytes of a value.
    """
    num_bytes = itemsize * chosen * tokens * width / (mesh.tp * mesh.cp)
    return 2 * all_to_all_s(num_bytes, mesh.ep_group, topology)


def expert_rows_s(
    tokens: int, width: int, chosen: int, mesh: Mesh, topology: Topology, *, itemsize: int = 2
) -> float:
    """Additional time of tensor parallelism if experts are on other ranks, in the forward pass.

    Ranks of tensor parallelism have a part of each expert, and so gather the rows that went to it,
    and scatter the sums: of a token the rows of all chosen experts, in place of the one that
    `tensor_parallel_s` counts. The backward pass takes the same time.

    Args:
        tokens: Tokens of the row.
        width: Hidden size.
        chosen: Experts that a token is sent to.
        mesh: Parallelism.
        topology: Where the ranks lie.
        itemsize: Bytes of a value.

    Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py
    (MoEAlltoAllTokenDispatcher).
    """
    num_bytes, group = itemsize * tokens * width / mesh.cp, mesh.tp_group
    rows_s = all_gather_s(chosen * num_bytes, group, topology)
    return 2 * (rows_s - all_gather_s(num_bytes, group, topology))


def pipeline_s(
    tokens: int, width: int, mesh: Mesh, topology: Topology, *, itemsize: int = 2
) -> float:
    """Activations of a row from a stage to the next; gradients take the same time back.

    Args:
        tokens: Tokens of the row.
        width: Hidden size.
        mesh: Parallelism.
        topology: Where the ranks lie.
        itemsize: Bytes of a value.
    """
    num_bytes = itemsize * tokens * width / (mesh.tp * mesh.cp)
    return point_to_point_s(num_bytes, mesh.pp_group, topology)


def gradients_s(
    parameters: float,
    replicas: Group,
    topology: Topology,
    *,
    sharded: bool,
    gradient_bytes: int = 4,
) -> float:
    """Sum of the gradients over ranks with the same weights, once a step.

    Args:
        parameters: Parameters of a rank that train: those of `Mesh.replicas`, or of
            `Mesh.expert_replicas`.
        replicas: These ranks.
        topology: Where they lie.
        sharded: Whether each rank steps a part of the parameters, and gets the sums of this part
            alone. Otherwise all ranks get all sums.
        gradient_bytes: Bytes of a gradient.
    """
    reduce_s = reduce_scatter_s if sharded else all_reduce_s
    return reduce_s(gradient_bytes * parameters, replicas, topology)
