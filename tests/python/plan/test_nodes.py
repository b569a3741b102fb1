from __future__ import annotations

import pytest

from flowtrain.plan.nodes import fits, nodes_of


@pytest.mark.parametrize(
    ("sizes", "gpus", "does"),
    [
        ((5, 5, 5), 16, False),  # Two of them would share a node.
        ((5, 5, 5), 24, True),
        ((5, 5, 3, 3), 16, True),
        ((4, 28), 32, True),
        ((4, 4, 24), 32, True),
        ((5, 28), 32, False),
        ((3, 3), 6, True),
        ((6, 6, 4), 16, False),
        ((12, 4), 16, True),
        ((7, 6), 12, False),  # The last node has four.
        ((7, 4), 12, True),
    ],
)
def test_a_module_has_whole_nodes_and_a_part_of_one(
    sizes: tuple[int, ...], gpus: int, does: bool
) -> None:
    assert fits(sizes, gpus=gpus, node=8) is does


def test_modules_may_need_more_nodes_than_their_sum() -> None:
    assert nodes_of([5, 5, 5], node=8) == 3
    assert nodes_of([4, 28], node=8) == 4
