"""Times against values computed by hand: 1 us and 1 GB/s inside a node, 10 us and 0.1 GB/s out."""

from __future__ import annotations

import collections
from dataclasses import replace

import numpy
import pytest

from flowtrain.cost import communication as comm
from flowtrain.cost.communication import Mesh
from flowtrain.cost.topology import Group, Link, Topology

US = 1e-6
NODES = Topology(
    devices_per_node=4,
    inside=Link(latency_s=1 * US, bytes_per_s=1e9),
    between=Link(latency_s=10 * US, bytes_per_s=1e8),
)


HOP = 2.4
"""Latency of a step of a ring or tree, in that of a message."""


@pytest.mark.parametrize(
    ("collective", "inside_us", "between_us"),
    [
        # 3 steps of 1000 bytes. Of 7 steps of 500 bytes 1 leaves a node, at the rate of 4 adapters.
        (comm.all_gather_s, 3 * (HOP * 1 + 1), HOP * (6 * 1 + 10) + 7 * 1.25),
        (comm.reduce_scatter_s, 3 * (HOP * 1 + 1), HOP * (6 * 1 + 10) + 7 * 1.25),
        (comm.all_reduce_s, 6 * (HOP * 1 + 1), 2 * (HOP * (6 * 1 + 10) + 7 * 1.25)),
        # Of 8 ranks 3 others are near, and 4 are not.
        (comm.all_to_all_s, 3 * (1 + 1), 3 * (1 + 0.5) + 4 * (10 + 5)),
        (comm.point_to_point_s, 1 + 4, 10 + 40),
    ],
)
def test_collectives_take_the_steps_of_their_algorithms(
    collective: object, inside_us: float, between_us: float
) -> None:
    assert callable(collective)
    assert collective(4000, Group(size=4), NODES) == pytest.approx(inside_us * US)
    assert collective(4000, Group(size=8), NODES) == pytest.approx(between_us * US)
    assert collective(4000, Group(size=1), NODES) == 0


def ring_seconds(num_bytes: float, mesh: Mesh) -> float:
    """All-gathers of all groups of `mesh.replicas` at once, link by link, without latency.

    Each group has a ring for each of its ranks in a node, at which that ring leaves the node.
    """
    group, devices = mesh.replicas, NODES.devices_per_node
    inside: collections.Counter[int] = collections.Counter()
    between: collections.Counter[int] = collections.Counter()
    for first in range(group.stride):
        ranks = [first + number * group.stride for number in range(group.size)]
        nodes = [
            [rank for rank in ranks if rank // devices == node]
            for node in sorted({rank // devices for rank in ranks})
        ]
        rings = len(nodes[0])
        part = num_bytes * (group.size - 1) / group.size / rings
        for turn in range(rings):
            ring = [rank for node in nodes for rank in node[turn:] + node[:turn]]
            for rank, following in zip(ring, ring[1:] + ring[:1], strict=True):
                links = inside if rank // devices == following // devices else between
                links[rank] += part
    busiest = [max(links.values(), default=0.0) for links in (inside, between)]
    return max(busiest[0] / NODES.inside.bytes_per_s, busiest[1] / NODES.between.bytes_per_s)


@pytest.mark.parametrize("mesh", [Mesh(dp=8), Mesh(dp=16), Mesh(tp=2, dp=6), Mesh(tp=4, dp=3)])
def test_rings_over_nodes_have_the_adapters_of_all_of_their_ranks_in_a_node(mesh: Mesh) -> None:
    found = comm.all_gather_s(1e9, mesh.replicas, NODES)
    assert found == pytest.approx(ring_seconds(1e9, mesh), rel=1e-3)


def test_adapters_are_no_faster_than_what_goes_between_two_ranks_of_a_node() -> None:
    wide = replace(NODES, between=Link(latency_s=0, bytes_per_s=0.9e9))
    assert comm.all_gather_s(8e9, Group(size=8), wide) == pytest.approx(7, rel=1e-3)


@pytest.mark.parametrize("num_bytes", [1e3, 1e5, 1e6, 1e9])
def test_a_long_all_reduce_is_a_ring_and_a_short_one_a_tree(num_bytes: float) -> None:
    group = Group(size=64)
    # Up and down again, part by part: 3 hops in a node, and 4 between 16 nodes. The best number of
    # parts is taken as if it need not be whole, and each hop to have the mean latency.
    hop_us, path = HOP * (3 * 1 + 4 * 10), 3 + 4
    tree_us = min(
        2 * (path + parts) * (hop_us / path + num_bytes / parts / 400)
        for parts in numpy.geomspace(1e-3, 1e6, 100_000)
    )
    ring_us = 2 * (HOP * (48 * 1 + 15 * 10) + 63 / 64 * num_bytes / 400)
    found = comm.all_reduce_s(num_bytes, group, NODES)
    assert found == pytest.approx(min(tree_us, ring_us) * US, rel=1e-4)
    assert (tree_us < ring_us) == (num_bytes < 1e6)


@pytest.mark.parametrize(
    ("size", "stride", "ranks"), [(4, 1, 4), (8, 1, 4), (2, 2, 2), (8, 2, 2), (3, 4, 1), (3, 5, 1)]
)
def test_ranks_of_a_group_lie_in_nodes_by_their_stride(size: int, stride: int, ranks: int) -> None:
    assert NODES.ranks_per_node(Group(size=size, stride=stride)) == ranks


def test_parallelism_sends_what_a_layer_needs() -> None:
    mesh = Mesh(tp=2, cp=2, dp=2, pp=2, ep=4)
    tokens, width = 1000, 8
    # Half of the row: 8000 bytes, gathered or scattered in 1 step of half of them, four times.
    tensor_us = 4 * (HOP * 1 + 4)
    assert comm.tensor_parallel_s(tokens, width, mesh, NODES) == pytest.approx(tensor_us * US)
    # Keys and values of half of the row and half of the heads: 2 x 2 x 500 x 2 bytes.
    ring_s = comm.context_parallel_s(tokens, 4, mesh, NODES, kv_heads=2)
    assert ring_s == pytest.approx((1 + 4) * US)
    # With one head both ranks of tensor parallelism send it.
    ring_s = comm.context_parallel_s(tokens, 4, mesh, NODES, kv_heads=1)
    assert ring_s == pytest.approx((1 + 8) * US)
    # 500 tokens to 3 experts, half of them from each rank: 12,000 bytes in quarters. One of the 3
    # others is in the node.
    assert comm.expert_parallel_s(tokens, width, 3, mesh, NODES) == pytest.approx(
        2 * ((1 + 3) + 2 * (10 + 30)) * US
    )
    # Of the 500 tokens, both ranks of tensor parallelism need 3 rows each in front of their part of
    # the experts, and sum as many: 24,000 bytes in halves, where 8000 are counted already.
    assert comm.expert_rows_s(tokens, width, 3, mesh, NODES) == pytest.approx(2 * (12 - 4) * US)
    assert comm.expert_rows_s(tokens, width, 3, Mesh(cp=2, dp=2, ep=4), NODES) == 0
    # 2 x 500 x 4 bytes to the next node but one.
    assert comm.pipeline_s(tokens, width, mesh, NODES) == pytest.approx((10 + 40) * US)


def test_sharded_gradients_move_half_of_what_sums_for_all_ranks_do() -> None:
    mesh = Mesh(tp=4, dp=2)
    # 4000 bytes of gradients in halves, and then again as many.
    summed = comm.gradients_s(1000, mesh.replicas, NODES, sharded=False)
    sharded = comm.gradients_s(1000, mesh.replicas, NODES, sharded=True)
    assert summed == pytest.approx(2 * (HOP * 10 + 20) * US)
    assert sharded == pytest.approx((HOP * 10 + 20) * US)


def test_replicas_of_experts_skip_the_ranks_that_share_them() -> None:
    mesh = Mesh(tp=2, cp=2, dp=8, ep=4)
    assert mesh.replicas == Group(size=16, stride=2)
    assert mesh.expert_replicas == Group(size=4, stride=8)


def test_bad_descriptions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bytes_per_s=0 must be above 0"):
        Link(latency_s=0, bytes_per_s=0)
    with pytest.raises(ValueError, match=r"ep=3 does not divide cp x dp = 4"):
        Mesh(dp=4, ep=3)
    # Of the groups of three ranks, one would be in one node and the next in two.
    with pytest.raises(ValueError, match=r"size=3 with stride=1 does not fit evenly into nodes"):
        comm.all_gather_s(1, Group(size=3), NODES)
    with pytest.raises(ValueError, match=r"size=0 and stride=1 must be at least 1"):
        Group(size=0)
