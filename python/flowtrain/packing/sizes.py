"""Sizes of samples, which packing needs."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy
from numpy.typing import NDArray

IntArray = NDArray[numpy.int64]
FloatArray = NDArray[numpy.float64]

INT_LIMIT = 1 << 62
"""Integers are below this limit, as the sums of the scheduler are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of some samples, each array of shape [num_samples].

    Attributes:
        tokens: Tokens.
        cost: Cost, in any unit that is the same for all samples.
        targets: Target tokens, or None if they are not needed.
    """

    tokens: IntArray
    cost: FloatArray
    targets: IntArray | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def of(self, which: IntArray) -> Sizes:
        """Sizes of the given samples, in the given order."""
        return Sizes(
            tokens=self.tokens[which],
            cost=self.cost[which],
            targets=None if self.targets is None else self.targets[which],
        )

    def checksum(self) -> int:
        """CRC-32 of all values."""
        crc = zlib.crc32(self.cost.tobytes(), zlib.crc32(self.tokens.tobytes()))
        return crc if self.targets is None else zlib.crc32(self.targets.tobytes(), crc)


class SizeSource(Protocol):
    """Yields samples in the order in which steps use them."""

    def take(self, count: int) -> tuple[IntArray, Sizes]:
        """Keys and sizes of the next `count` samples; fewer if the source has ended."""
        ...
