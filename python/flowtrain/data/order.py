"""The order of samples over all epochs, with a new permutation in each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SampleOrder:
    """Sample numbers in the order in which a run draws them.

    Args:
        num_samples: Samples of the data file.
        seed: Seed of the permutations.
        shuffle: Whether to permute; otherwise samples come in file order.
    """

    def __init__(self, num_samples: int, seed: int, shuffle: bool) -> None:
        self._num_samples = num_samples
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: NDArray[np.int64] = np.arange(num_samples)

    def index(self, cursor: int) -> int:
        """Number of the sample that is drawn after `cursor` others, over all epochs."""
        epoch, at = divmod(cursor, self._num_samples)
        return int(self.of_epoch(epoch)[at])

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """Sample numbers in the order of an epoch, shape [num_samples]."""
        if self._shuffle and epoch != self._epoch:
            # Philox is specified bit for bit, so that the order does not depend on the version.
            generator = np.random.Generator(np.random.Philox([self._seed, epoch]))
            self._order = np.argsort(generator.random(self._num_samples), kind="stable")
            self._epoch = epoch
        return self._order
