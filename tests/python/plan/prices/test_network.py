"""Rates between the ranks of a group, by the nodes on which they are."""

from __future__ import annotations

from flowtrain.cost.communication import Mesh
from flowtrain.plan.prices.network import Network
from tests.planned import small_pool


def test_groups_that_do_not_divide_nodes_have_the_ranks_of_the_node_with_fewest() -> None:
    network = Network(small_pool(1).topology, 12)
    even, odd = Mesh(tp=2, dp=6).tp_group, Mesh(tp=2, dp=3, pp=2).replicas
    assert network.slowest(even).bytes_per_s == 1e10
    assert network.slowest(odd).bytes_per_s == 2e9
    # 14 ranks on nodes of 4 leave 2 for the last node: twice an adapter, seven times.
    part = Mesh(dp=14).replicas
    around = Network(small_pool(1).topology, 14).around(part)
    assert (around.ring_rate(part), around.nodes(part)) == (2 * 2e9, 7)
    inside = Network(small_pool(1).topology, 3)
    assert inside.slowest(Mesh(dp=3).replicas).bytes_per_s == 1e10
