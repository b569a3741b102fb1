"""The endless order of samples: every epoch a permutation of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SampleOrder:
    """Line numbers in the order in which a run draws them.

    Args:
        num_samples: Lines of the data file.
        seed: Seed of the permutations.
        shuffle: Whether to permute; file order otherwise.
    """

    def __init__(self, num_samples: int, seed: int, shuffle: bool) -> None:
        self._num_samples = num_samples
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._lines: NDArray[np.int64] = np.arange(num_samples)

    def index(self, cursor: int) -> int:
        """Line of the sample drawn after `cursor` others, over all epochs."""
        epoch, at = divmod(cursor, self._num_samples)
        return int(self.lines(epoch)[at])

    def lines(self, epoch: int) -> NDArray[np.int64]:
        """Lines in the order of an epoch, shape [num_samples]."""
        if self._shuffle and epoch != self._epoch:
            # Philox is specified bit for bit, so that an order outlives versions.
            generator = np.random.Generator(np.random.Philox([self._seed, epoch]))
            self._lines = np.argsort(generator.random(self._num_samples), kind="stable")
            self._epoch = epoch
        return self._lines
