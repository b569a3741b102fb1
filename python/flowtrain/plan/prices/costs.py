"""Times and sizes of the layers of a module on one rank, for a mesh and a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain.config.parallel import Sharding
from flowtrain.cost import communication as comm
from flowtrain.cost.communication import Mesh
from flowtrain.cost.topology import Group
from flowtrain.plan.arrays import BoolArray, FloatArray, IntArray
from flowtrain.plan.prices.collectives import add_collectives, add_shards, exposed_s
from flowtrain.plan.prices.network import Network
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.prices.working import Working, working_of
from flowtrain.plan.space import Host

SECONDS = ("forward", "backward", "tp", "cp", "ep", "shards")
STATES = ("weights", "masters", "gradients", "moments")
_SUM_PASSES = 3  # Two gradients are read, and their sum is written.


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What the layers of a module cost on a rank, for some rows, by kind of layer.

    Attributes:
        forward: Seconds of the forward pass by what they are spent on, shape
            [num_rows, 6, num_kinds], in the order of SECONDS.
        backward: The same of the backward pass, without recomputation. Gradients are added to those
            of earlier passes in it.
        again: Seconds of what each of LEVELS computes again, shape [num_rows, 3, num_kinds]; 0 for
            layers that are no blocks.
        kept: Bytes kept of a full row with each of LEVELS, shape [num_rows, 3, num_kinds].
        working: Bytes that exist beside what the passes keep and the states.
        states: Bytes of weights, master weights, gradients and moments, shape [4, num_kinds].
        host: Bytes of weights, gradients and moments in host memory, shape [3, num_kinds]. The
            weights are copied in whenever they are gathered, and the gradients out whenever they
            are summed.
        reduced: Parameters that train outside of experts, and in experts, shape [2, num_kinds].
    """

    forward: FloatArray
    backward: FloatArray
    again: FloatArray
    kept: FloatArray
    working: Working
    states: FloatArray
    host: FloatArray
    reduced: FloatArray


@dataclass(frozen=True, slots=True)
class Shape:
    """A mesh, and what its replicas share out.

    Attributes:
        mesh: The mesh.
        sharding: What they share out.
        shard_ranks: Replicas that divide one copy (HSDP), of neighbouring ranks; None for all.
        offload: Whether what they share out is in host memory.
    """

    mesh: Mesh
    sharding: Sharding
    shard_ranks: int | None = None
    offload: bool = False

    @property
    def gpus(self) -> int:
        """Ranks."""
        return self.mesh.tp * self.mesh.cp * self.mesh.dp * self.mesh.pp

    @property
    def meets(self) -> bool:
        """Whether replicas wait for each other in each pass, and not only at the end of a step."""
        return self.mesh.ep > 1 or (self.sharding == "full" and self.mesh.dp * self.mesh.cp > 1)

    @property
    def shards(self) -> tuple[Group, Group]:
        """Ranks that divide one copy of parameters outside of experts, and in experts."""
        if self.shard_ranks is None:
            return self.mesh.replicas, self.mesh.expert_replicas
        divide = Group(size=self.shard_ranks, stride=self.mesh.tp)
        return divide, divide

    @property
    def copies(self) -> Group:
        """Ranks with the same share of a copy."""
        size = 1 if self.shard_ranks is None else self.mesh.replicas.size // self.shard_ranks
        return Group(size=size, stride=self.mesh.tp * self.shards[0].size)

    @property
    def owners(self) -> FloatArray:
        """Number of ranks that divide a copy outside of experts, and in experts, shape [2, 1]."""
        return numpy.array([group.size for group in self.shards], numpy.float64)[:, None]


def costs_of(
    tables: Tables,
    shape: Shape,
    rows: Sequence[Row],
    network: Network,
    *,
    layers: IntArray,
    passes_per_step: FloatArray,
    memory_bytes_per_s: float,
    host: Host,
    exposed: float,
) -> Costs:
    """Costs of all kinds of layers.

    Layers in front of the backbone are not shared out by context parallelism: each of its ranks
    computes them.

    Args:
        tables: The layers.
        shape: The mesh.
        rows: What is computed at once.
        network: Where the ranks lie.
        layers: Layers of each kind in the module, shape [num_kinds].
        passes_per_step: Backward passes of a step, shape [num_rows].
        memory_bytes_per_s: Peak rate of the memory.
        host: The host's side of a GPU.
        exposed: As for `exposed_s`.

    Raises:
        ValueError: The times are not valid for a row.
    """
    mesh = shape.mesh
    passes = numpy.array([tables.row_passes(row, mesh) for row in rows])
    forward, backward = numpy.zeros((2, len(rows), len(SECONDS), len(tables.first)))
    forward[:, 0], backward[:, 1] = passes[:, 0], passes[:, 1]
    add_collectives(forward, backward, passes[:, 2], tables, mesh, rows, network, exposed=exposed)
    whole = forward.sum(1)
    again = numpy.stack([0 * whole, whole - passes[:, 2], whole], axis=1)
    again *= tables.block * tables.gradient
    local = numpy.array([tables.parameters / mesh.tp, tables.experts / (mesh.tp * mesh.ep)])
    trained = numpy.array([tables.trained / mesh.tp, tables.trained_experts / (mesh.tp * mesh.ep)])
    if mesh.pp > 1:
        # A tied head is on another stage than the embedding, and has a copy.
        local[0, tables.head] += tables.tied[0] / mesh.tp
        trained[0, tables.head] += tables.tied[1] / mesh.tp
    # Ranks of tensor parallelism beyond the heads of keys and values repeat them.
    repeated = 1 / min(mesh.tp, tables.model.kv_heads) - 1 / mesh.tp
    local[0] += repeated * tables.keys[0]
    trained[0] += repeated * tables.keys[1]
    tokens, targets = numpy.array([(row.most_tokens, row.most_targets) for row in rows]).T[
        :, :, None, None
    ]
    encoded = numpy.array([tables.per_kind(row.most_encoded) for row in rows])[:, None]
    kept = tokens * tables.kept_per_token + targets * tables.kept_per_target
    kept[:, 0] += repeated * mesh.tp * tokens[:, 0] * tables.kept_keys
    kept = kept / (mesh.tp * mesh.cp) + encoded * tables.kept_per_encoded_token / mesh.tp
    in_chunks = _add_chunks(kept, forward, backward, rows, tables, mesh)
    offloaded = _offloaded(tables, local, trained, shape)
    added_bytes_per_s = memory_bytes_per_s
    if shape.sharding == "full":
        if shape.offload:
            added_bytes_per_s = host.memory_bytes_per_s
        add_shards(
            forward,
            backward,
            local,
            trained,
            tables,
            shape.shards,
            shape.copies,
            network,
            copied_s=offloaded[:2] / host.link_bytes_per_s,
            exposed=exposed,
        )
    # The first pass of a step has nothing to add to.
    later = (1 - 1 / passes_per_step)[:, None]
    own = trained / shape.owners if shape.sharding == "full" else trained
    backward[:, 1] += later * _SUM_PASSES * tables.state[2] * own.sum(0) / added_bytes_per_s
    return Costs(
        forward=forward,
        backward=backward,
        again=again,
        kept=kept,
        working=working_of(
            tables,
            rows,
            mesh=mesh,
            sharding=shape.sharding,
            layers=layers,
            weights=local.sum(0),
            trained=trained.sum(0),
            shares=(trained / shape.owners).sum(0),
            in_chunks=in_chunks,
        ),
        states=_states(tables, local, trained, shape),
        host=offloaded,
        reduced=trained,
    )


def _add_chunks(
    kept: FloatArray,
    forward: FloatArray,
    backward: FloatArray,
    rows: Sequence[Row],
    tables: Tables,
    mesh: Mesh,
) -> BoolArray:
    """Change what a head that goes in chunks keeps, and add what it computes again.

    Returns:
        Whether the head goes in chunks for a full row, shape [num_rows].
    """
    ranks, limit, head = mesh.tp * mesh.cp, tables.work.logit_bytes, tables.head
    target_bytes = tables.exact_itemsize * tables.model.vocabulary / ranks
    most = numpy.array([row.most_targets for row in rows])
    mean = numpy.array([row.tokens for row in rows]) / tables.share.tokens * tables.share.targets
    in_chunks: BoolArray = most * target_bytes > limit
    kept[in_chunks, :, head] = most[in_chunks, None] * tables.kept_with_chunks / ranks
    again = tables.gradient[head] * (mean * target_bytes > limit)
    backward[:, 1, head] += again * forward[:, 0, head]
    backward[:, 2:, head] += again[:, None] * forward[:, 2:, head]
    return in_chunks


def _states(tables: Tables, local: FloatArray, trained: FloatArray, shape: Shape) -> FloatArray:
    """Bytes of the states, shape [4, num_kinds].

    Sharded modules store their share of the master weights in place of those that train, and gather
    weights from it.
    """
    weight, masters, _, _ = tables.state
    per_kind = numpy.array([local, trained, trained, trained])
    owners = numpy.ones((4, 2, 1))
    if shape.sharding != "replicated":
        owners[[1, 3]] = shape.owners
    if shape.sharding == "full":
        owners[[0, 2]] = shape.owners
    found: FloatArray = (per_kind / owners).sum(1) * tables.state[:, None]
    stored = local - trained if masters else local
    if shape.sharding == "full":
        found[0] = weight * (stored / shape.owners).sum(0)
    elif shape.sharding == "optimizer" and not shape.offload:
        found[0] += weight * (stored / shape.owners).sum(0)
    if shape.offload:
        found[[1, 3] if shape.sharding == "optimizer" else slice(None)] = 0.0
    return found


def _offloaded(tables: Tables, local: FloatArray, trained: FloatArray, shape: Shape) -> FloatArray:
    """Bytes of states in host memory, as `Costs.host`; also of weights that do not train."""
    if not shape.offload:
        return numpy.zeros((3, local.shape[1]))
    weight, master, gradient, moments = tables.state.tolist()
    own, frozen = (trained / shape.owners).sum(0), ((local - trained) / shape.owners).sum(0)
    stepped = (master or weight) * own
    return numpy.array([stepped + weight * frozen, gradient * own, moments * own])


def update_s(
    tables: Tables,
    costs: Costs,
    shape: Shape,
    layers: IntArray,
    forward_s: float,
    backward_s: float,
    *,
    network: Network,
    memory_bytes_per_s: float,
    host: Host,
    exposed: float,
) -> tuple[float, float]:
    """Seconds to sum the gradients, as far as they are not hidden, and of the optimizer's step.

    If replicas share out its states, each steps the parameters of its share, and then gathers the
    weights of the others, layer by layer in front of the next forward pass.

    Args:
        tables: The layers.
        costs: Of the module.
        shape: Its mesh.
        layers: Layers of each kind on the rank, shape [num_kinds].
        forward_s: Forward pass of a microbatch, behind which the gather of weights hides.
        backward_s: Backward pass of one, behind which gradients hide.
        network: Where the ranks lie.
        memory_bytes_per_s: Peak rate of the memory.
        host: The host's side of a GPU.
        exposed: As for `exposed_s`.

    Source: Megatron-LM's distributed optimizer, which overlaps both layer by layer.
    """
    trained = costs.reduced @ layers
    reduce_s = gather_s = 0.0
    if shape.sharding != "full":
        for parameters, group in zip(trained.tolist(), shape.shards, strict=True):
            if not parameters or group.size == 1:
                continue
            around = network.around(group)
            reduce_s += comm.gradients_s(
                parameters,
                group,
                around,
                sharded=shape.sharding == "optimizer",
                gradient_bytes=round(tables.state[2]),
            )
            if shape.sharding == "optimizer":
                gather_s += comm.all_gather_s(tables.work.itemsize * parameters, group, around)
        if shape.copies.size > 1:
            num_bytes = tables.state[2] * float(trained.sum()) / shape.shards[0].size
            reduce_s += comm.all_reduce_s(num_bytes, shape.copies, network.around(shape.copies))
        copied_s = costs.host[:2] @ layers / host.link_bytes_per_s
        gather_s, reduce_s = gather_s + float(copied_s[0]), reduce_s + float(copied_s[1])
    own = trained if shape.sharding == "replicated" else trained / shape.owners[:, 0]
    _, masters, gradients, moments = tables.state.tolist()
    moved = 2 * (masters + moments + tables.work.itemsize) + gradients
    if shape.offload:
        # Gradients are also read for their norm, and read and written to be scaled.
        moved = 2 * ((masters or tables.work.itemsize) + moments) + 4 * gradients
        memory_bytes_per_s = host.memory_bytes_per_s
    shown_s = exposed_s(
        numpy.array([reduce_s, gather_s]), numpy.array([backward_s, forward_s]), exposed
    )
    return float(shown_s.sum()), float(own.sum()) * moved / memory_bytes_per_s
