"""Collectives of the passes of a module, as far as computation does not hide them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from flowtrain.cost import communication as comm
from flowtrain.cost.communication import Mesh
from flowtrain.cost.topology import Group
from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.prices.network import Network
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables


def exposed_s(collective_s: FloatArray, beside_s: FloatArray, share: float) -> FloatArray:
    """Seconds by which collectives make longer what they run beside.

    What is left when that is over is exposed, and so is a share of the rest: both compete for
    multiprocessors and memory, so that each is slower beside the other. The rule is the same for
    all collectives that overlap.

    Args:
        collective_s: Seconds of the collectives alone.
        beside_s: Seconds of what they run beside, alone.
        share: Share of the hidden seconds that is exposed all the same.
    """
    found: FloatArray = collective_s - (1 - share) * numpy.minimum(collective_s, beside_s)
    return found


def add_collectives(
    forward: FloatArray,
    backward: FloatArray,
    attention: FloatArray,
    tables: Tables,
    mesh: Mesh,
    rows: Sequence[Row],
    network: Network,
    *,
    exposed: float,
) -> None:
    """Add the times of tensor, context and expert parallelism.

    Args:
        forward: Seconds of the forward pass, as `Costs.forward`.
        backward: The same of the backward pass.
        attention: Seconds of attention in the forward pass, shape [num_rows, num_kinds]; the ring
            of context parallelism runs beside it.
        tables: The layers.
        mesh: The mesh.
        rows: What is computed at once.
        network: Where the ranks lie.
        exposed: As for `exposed_s`.
    """
    model, itemsize = tables.model, tables.work.itemsize
    text = tables.block & ~tables.vision
    # The formulas hold for arrays as well: all rows at once.
    tokens: Any = numpy.array([[row.tokens] for row in rows])
    if mesh.tp > 1:
        forward[:, 2] = _tensor_parallel_s(tables, mesh, rows, network)
    if mesh.cp > 1:
        ring_s: Any = comm.context_parallel_s(
            tokens,
            model.kv_width,
            mesh,
            network.around(mesh.cp_group),
            kv_heads=model.kv_heads,
            itemsize=itemsize,
        )
        shown = exposed_s(ring_s, attention, exposed)
        forward[:, 3] = text * shown
        # Both the messages and the attention of the backward pass are about twice as long.
        backward[:, 3] = text * tables.gradient * 2 * shown
    if mesh.ep > 1:
        moved = (tokens, model.width, model.chosen_experts, mesh)
        forward[:, 4] = tables.sparse * (
            comm.expert_parallel_s(*moved, network.around(mesh.ep_group), itemsize=itemsize)
            + comm.expert_rows_s(*moved, network.around(mesh.tp_group), itemsize=itemsize)
        )
    backward[:, 2] = tables.gradient * forward[:, 2]
    backward[:, 4] = tables.gradient * forward[:, 4]
    if mesh.tp > 1:
        # The backward pass of the loss has nothing to reduce.
        around = network.around(mesh.tp_group)
        forward[:, 2, tables.head] += [
            comm.vocabulary_loss_s(count, mesh, around) for count in _targets(tables, rows)
        ]


def _targets(tables: Tables, rows: Sequence[Row]) -> FloatArray:
    """Target tokens of rows of mean samples, shape [num_rows]."""
    return numpy.array([tables.share.targets / tables.share.tokens * row.tokens for row in rows])


def _tensor_parallel_s(
    tables: Tables, mesh: Mesh, rows: Sequence[Row], network: Network
) -> FloatArray:
    """Seconds of gathers and scatters in the forward pass, shape [num_rows, num_kinds].

    Source: Megatron-LM and torchtitan, which share out embedding and head by the vocabulary.
    """
    width, around = tables.model.width, network.around(mesh.tp_group)
    tokens = numpy.array([[row.tokens] for row in rows])
    encoded = numpy.array([tables.per_kind(row.encoded) for row in rows])
    # Context parallelism does not share out layers in front of the backbone.
    whole = Mesh(tp=mesh.tp)
    of_unit: Any = (
        (tokens, width, mesh),
        (_targets(tables, rows)[:, None], width, mesh),
        (encoded * tables.tower_tokens_per_token, tables.tower_width, whole),
        (encoded, width, whole),
    )
    found = numpy.zeros((len(rows), len(tables.first)))
    for count, (moved, values, own) in zip(tables.collectives, of_unit, strict=True):
        collectives: Any = count
        found += comm.tensor_parallel_s(
            moved, values, own, around, collectives=collectives, itemsize=tables.work.itemsize
        )
    return found


def add_shards(
    forward: FloatArray,
    backward: FloatArray,
    local: FloatArray,
    trained: FloatArray,
    tables: Tables,
    shards: tuple[Group, Group],
    copies: Group,
    network: Network,
    *,
    copied_s: FloatArray,
    exposed: float,
) -> None:
    """Add the time to gather weights and to scatter gradients, per microbatch.

    Weights of blocks are gathered for both passes, those of all other layers for the forward pass.
    Those of a layer run beside the passes of its neighbours, which take as long as its own.
    Copies sum their shares of the gradients behind each scatter, as FSDP2 does.

    Args:
        forward: Seconds of the forward pass, as `Costs.forward`.
        backward: The same of the backward pass.
        local: Parameters of a rank outside of experts, and in experts, shape [2, num_kinds].
        trained: Those of them that train.
        tables: The layers.
        shards: Ranks that divide one copy of parameters outside of experts, and in experts.
        copies: Ranks with the same share of a copy.
        network: Where the ranks lie.
        copied_s: Seconds to copy weights from host memory, and gradients there, shape
            [2, num_kinds].
        exposed: As for `exposed_s`.
    """
    weight_bytes, gradient_bytes = tables.work.itemsize, float(tables.state[2])
    gather_s, scatter_s = copied_s.copy()
    for group, held, steps in zip(shards, local, trained, strict=True):
        if group.size == 1:
            continue
        around = network.around(group)
        gathered: Any = weight_bytes * held
        scattered: Any = gradient_bytes * steps
        gather_s += (held > 0) * comm.all_gather_s(gathered, group, around)
        scatter_s += (steps > 0) * comm.reduce_scatter_s(scattered, group, around)
    if copies.size > 1:
        shared: Any = gradient_bytes * trained.sum(0) / shards[0].size
        around = network.around(copies)
        scatter_s += [comm.all_reduce_s(size, copies, around) if size else 0.0 for size in shared]
    forward[:, 5] = exposed_s(gather_s, forward.sum(1), exposed)
    # The root, all that is no block, stays gathered from the forward pass (FSDP2).
    needed = tables.gradient * tables.block * gather_s + scatter_s
    backward[:, 5] = exposed_s(needed, backward.sum(1), exposed)
