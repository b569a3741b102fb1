"""Encoders that share their ranks with the backbone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flowtrain.plan.prices.encoder import EncoderPrice


@dataclass(frozen=True)
class Together:
    """A layout of each encoder, all on the same ranks, one after the other.

    Attributes:
        prices: Their prices, in the order of the encoders.
    """

    prices: tuple[EncoderPrice, ...] = ()

    def beside(self, other: Together) -> Together:
        """These encoders, and others behind them."""
        return Together(self.prices + other.prices)

    @cached_property
    def once_s(self) -> float:
        """Seconds of a step that the ranks spend on them."""
        return sum(price.once_s for price in self.prices)

    @cached_property
    def held_bytes(self) -> float:
        """Memory of a rank while the backbone runs: states, and what backward passes need."""
        return sum(price.memory().total - price.memory().working for price in self.prices)

    @cached_property
    def working_bytes(self) -> float:
        """The most working memory of an encoder. No encoder has any while the backbone runs."""
        return max((price.memory().working for price in self.prices), default=0.0)
