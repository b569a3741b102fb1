"""Times against values computed by hand: 1 us and 1 GB/s inside a node, 10 us and 0.1 GB/s out."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("collective", "inside_us", "between_us"),
    [
        # 3 steps of 1000 bytes; 7 steps of 500 bytes over the slower links.
        (comm.all_gather_s, 3 * (1 + 1), 7 * (10 + 5)),
        (comm.reduce_scatter_s, 3 * (1 + 1), 7 * (10 + 5)),
        (comm.all_reduce_s, 6 * (1 + 1), 14 * (10 + 5)),
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


@pytest.mark.parametrize(
    ("size", "stride", "ranks"), [(4, 1, 4), (8, 1, 4), (2, 2, 2), (8, 2, 2), (3, 4, 1), (3, 5, 1)]
)
def test_ranks_of_a_group_lie_in_nodes_by_their_stride(size: int, stride: int, ranks: int) -> None:
    assert NODES.ranks_per_node(Group(size=size, stride=stride)) == ranks


def test_parallelism_sends_what_a_layer_needs() -> None:
    mesh = Mesh(tp=2, cp=2, dp=2, pp=2, ep=4)
    tokens, width = 1000, 8
    # Half of the row: 8000 bytes, gathered or scattered in 1 step of half of them, four times.
    assert comm.tensor_parallel_s(tokens, width, mesh, NODES) == pytest.approx(4 * (1 + 4) * US)
    # Keys and values of half of the row and half of the heads: 2 x 2 x 500 x 2 bytes.
    assert comm.context_parallel_s(tokens, 4, mesh, NODES) == pytest.approx((1 + 4) * US)
    # 500 tokens to 3 experts, half of them from each rank: 12,000 bytes in quarters. One of the 3
    # others is in the node.
    assert comm.expert_parallel_s(tokens, width, 3, mesh, NODES) == pytest.approx(
        2 * ((1 + 3) + 2 * (10 + 30)) * US
    )
    # 2 x 500 x 4 bytes to the next node but one.
    assert comm.pipeline_s(tokens, width, mesh, NODES) == pytest.approx((10 + 40) * US)


def test_sharded_gradients_move_weights_in_place_of_sums() -> None:
    mesh = Mesh(tp=4, dp=2)
    # 4000 bytes of gradients in halves, and then again as many, or 2000 bytes of weights.
    summed = comm.gradients_s(1000, mesh.replicas, NODES, sharded=False)
    sharded = comm.gradients_s(1000, mesh.replicas, NODES, sharded=True)
    assert summed == pytest.approx(2 * (10 + 20) * US)
    assert sharded == pytest.approx((10 + 20 + 10 + 10) * US)


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
