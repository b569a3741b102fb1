"""The order of samples over all epochs, with another permutation in each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 12
# Positions computed at once: enough to outweigh the calls of NumPy, few enough for the caches.
_BLOCK = 4096


class DrawOrder(ABC):
    """The order in which a run draws samples."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Different samples, as far as they are known."""

    @property
    @abstractmethod
    def draws_of_all(self) -> int:
        """A number of consecutive draws that contain every sample, wherever they start."""

    @abstractmethod
    def index(self, cursor: int) -> int:
        """Number of the sample that is drawn after `cursor` others, over all epochs."""

    def expect(self, end: int) -> None:  # noqa: B027
        """Announce that all draws before `end` will be asked for."""

    def is_ready(self, cursor: int) -> bool:
        """Whether `index` returns without waiting."""
        return True


class SampleOrder:
    """Sample numbers in the order in which a run draws them.

    No permutation is stored: a number is computed from its position, in memory that does not
    depend on the number of samples.

    Args:
        num_samples: Samples of the data set.
        seed: Seed of the permutations.
        shuffle: Whether to permute; otherwise samples come in the order of the data set.
        stream: Number of the permutations among those of the same seed.
    """

    def __init__(self, num_samples: int, seed: int, shuffle: bool, *, stream: int = 0) -> None:
        self._num_samples = num_samples
        self._key = seed, stream
        self._shuffle = shuffle
        self._permutation = _Permutation(num_samples, self._key, epoch=0)
        self._first = 0
        self._block: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def index(self, cursor: int) -> int:
        """Number of the sample that is drawn after `cursor` others, over all epochs."""
        if not self._shuffle:
            return cursor % self._num_samples
        # Cursors are mostly asked for one after the other.
        if not self._first <= cursor < self._first + len(self._block):
            self._first, self._block = cursor, self.block(cursor)
        return int(self._block[cursor - self._first])

    def block(self, cursor: int) -> NDArray[np.int64]:
        """Numbers of some samples that are drawn from `cursor` on, all in one epoch."""
        end = min(_BLOCK, self._num_samples - cursor % self._num_samples)
        return self.numbers(np.arange(cursor, cursor + end))

    def numbers(self, cursors: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of the samples at any cursors, both of shape [num_cursors]."""
        epochs, numbers = np.divmod(cursors, self._num_samples)
        if self._shuffle:
            for epoch in np.unique(epochs).tolist():
                at = epochs == epoch
                numbers[at] = self._of(epoch)(numbers[at])
        return numbers

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """Sample numbers in the order of an epoch, shape [num_samples]."""
        first = epoch * self._num_samples
        blocks = range(first, first + self._num_samples, _BLOCK)
        return np.concatenate([self.block(cursor) for cursor in blocks])

    def _of(self, epoch: int) -> _Permutation:
        if self._permutation.epoch != epoch:
            self._permutation = _Permutation(self._num_samples, self._key, epoch)
        return self._permutation


class _Permutation:
    """A pseudo-random permutation of the numbers below `size`, computed for each number.

    A Feistel network permutes the pairs (left, right) with left < a and right < b, where a * b is
    at least `size` and exceeds it by less than a. A result that is not below `size` is permuted
    again until it is (cycle walking), which keeps the mapping one-to-one.

    Source: Black and Rogaway (2002), "Ciphers with arbitrary finite domains"; the hash is the
    finalizer of SplitMix64, Steele, Lea and Flood (2014).

    Args:
        size: Size of the permuted set, at least 1 and less than 2^62.
        key: Seed of the run, and a number of the permutations of that seed.
        epoch: Epoch, from 0.
    """

    def __init__(self, size: int, key: tuple[int, int], epoch: int) -> None:
        self.epoch = epoch
        self._size = np.uint64(size)
        a = math.isqrt(size - 1) + 1
        self._moduli = np.uint64(a), np.uint64(-(-size // a))
        # Philox is specified bit for bit, so that the order does not depend on the version.
        # A trailing 0 does not change the seed.
        seed, stream = key
        self._keys = np.random.Philox([seed, epoch, stream]).random_raw(_ROUNDS)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers at positions, both of shape [num_positions]."""
        numbers = self._network(positions.astype(np.uint64))
        while (outside := np.flatnonzero(numbers >= self._size)).size:
            numbers[outside] = self._network(numbers[outside])
        return numbers.astype(np.int64)

    def _network(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        a, b = self._moduli
        left, right = numbers // b, numbers % b
        for first, second in self._keys.reshape(-1, 2):
            left = _add(left, _hash(right, first), a)
            right = _add(right, _hash(left, second), b)
        return left * b + right


def _add(
    numbers: NDArray[np.uint64], hashes: NDArray[np.uint64], modulus: np.uint64
) -> NDArray[np.uint64]:
    """Numbers below a modulus plus hashes that are scaled to it, modulo the modulus."""
    total = numbers + ((hashes >> np.uint64(32)) * modulus >> np.uint64(32))
    # If the total is below the modulus, the difference wraps around to a larger number.
    return np.minimum(total, total - modulus)


def _hash(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """64 pseudo-random bits for each number."""
    mixed = numbers ^ key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
