"""Whether modules fit side by side into the nodes of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Room:
    """GPUs of a pool, in nodes of which the last one may have fewer."""

    gpus: int
    node: int


def fits(sizes: Sequence[int], *, gpus: int, node: int) -> bool:
    """Whether modules fit into whole nodes, and what is left of each into a part of one node.

    Args:
        sizes: GPUs of each module.
        gpus: GPUs of the pool; if they are no whole nodes, the last node has the rest.
        node: GPUs of a node.
    """
    whole = gpus // node - sum(size // node for size in sizes)
    parts = tuple(sorted((size % node for size in sizes if size % node), reverse=True))
    return whole >= 0 and _packed(parts, (*[node] * min(whole, len(parts)), gpus % node))


def nodes_of(sizes: Sequence[int], *, node: int) -> int:
    """The smallest number of nodes into which modules fit, as in `fits`.

    Args:
        sizes: GPUs of each module.
        node: GPUs of a node.
    """
    count = -(-sum(sizes) // node)
    while not fits(sizes, gpus=count * node, node=node):
        count += 1
    return count


@cache
def _packed(parts: tuple[int, ...], rooms: tuple[int, ...]) -> bool:
    """Whether parts fit into rooms."""
    if not parts:
        return True
    first, *others = parts
    return any(
        _packed(tuple(others), (*rooms[:number], room - first, *rooms[number + 1 :]))
        for number, room in enumerate(rooms)
        if room >= first and room not in rooms[:number]
    )
