"""Encoders that share their ranks with the backbone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy

from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.search.pareto import not_beaten


@dataclass(frozen=True)
class Together:
    """A layout of each encoder, all on the same ranks, one after the other.

    Attributes:
        prices: Their prices, in the order of the encoders.
        chunk_slots: Slots of the backbone that are encoded, computed and passed back at a time;
            None for all of a step.
    """

    prices: tuple[EncoderPrice, ...] = ()
    chunk_slots: int | None = None

    def beside(self, other: Together) -> Together:
        """These encoders, and others behind them."""
        return Together(self.prices + other.prices, self.chunk_slots)

    @cached_property
    def once_s(self) -> float:
        """Seconds of a step that the ranks spend on them."""
        return sum(price.once_s for price in self.prices)

    @cached_property
    def held_bytes(self) -> float:
        """Memory of a rank while the backbone runs: states, and what backward passes need."""
        return sum(price.memory().total - price.memory().working for price in self.prices)

    @cached_property
    def states_bytes(self) -> float:
        """Memory of a rank that no order of the passes changes."""
        return sum(price.fixed.states for price in self.prices)

    @cached_property
    def working_bytes(self) -> float:
        """The most working memory of an encoder. No encoder has any while the backbone runs."""
        return max((price.memory().working for price in self.prices), default=0.0)


def together(
    shapes: Sequence[Sequence[Shape]],
    prices_of: Callable[[int, Shape], list[EncoderPrice]],
    chunk_slots: int | None = None,
) -> list[Together]:
    """Choices of a layout for each encoder, the shortest first, without those that another beats.

    Args:
        shapes: Meshes of each encoder, all on the same ranks.
        prices_of: Gives the prices of an encoder on one of its meshes.
        chunk_slots: As for `Together`.
    """
    found = [Together(chunk_slots=chunk_slots)]
    for place, own_shapes in enumerate(shapes):
        prices = [price for shape in own_shapes for price in prices_of(place, shape)]
        own = _not_beaten([Together((price,), chunk_slots) for price in prices])
        found = _not_beaten([one.beside(two) for one in found for two in own])
    return found


def _not_beaten(found: list[Together]) -> list[Together]:
    found = sorted(found, key=lambda each: each.once_s)
    # Layouts with few bytes beside their activations are good for chunks.
    values = [
        (
            each.once_s,
            each.held_bytes,
            each.held_bytes + each.working_bytes,
            each.states_bytes,
        )
        for each in found
    ]
    return [found[number] for number in not_beaten(numpy.array(values).reshape(-1, 4).T)]
