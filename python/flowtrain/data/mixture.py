"""The order in which a run draws from data sets with weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from flowtrain.config.data import DataConfig
from flowtrain.data.errors import DataError
from flowtrain.data.order import DrawOrder, SampleOrder
from flowtrain.data.records import Dataset


class MixedOrder(DrawOrder):
    """Sample numbers of several data sets in the order in which a run draws them.

    An epoch has a fixed number of draws from each data set, in a shuffled order or data set by data
    set. The draws from a data set run through it again and again, and an epoch continues where the
    one before has stopped: after any epoch, the numbers of draws of two of its samples differ by at
    most 1. Sample numbers count through all data sets. Memory does not depend on the number of
    samples.

    Args:
        sizes: Samples of each data set.
        draws: Draws from each data set per epoch, at least 1.
        seed: Seed of the permutations.
        shuffle: Whether to permute the draws of an epoch.
    """

    def __init__(
        self, sizes: Sequence[int], draws: Sequence[int], *, seed: int, shuffle: bool
    ) -> None:
        self._sizes, self._draws = sizes, draws
        self._slots = SampleOrder(sum(draws), seed, shuffle)
        self._slot_ends = np.cumsum(draws, dtype=np.int64)
        self._first_samples = np.cumsum([0, *sizes], dtype=np.int64)
        # If each epoch draws all samples equally often, the order of the draws suffices.
        self._passes = [
            SampleOrder(size, seed, shuffle and number % size != 0, stream=1 + source)
            for source, (size, number) in enumerate(zip(sizes, draws, strict=True))
        ]
        self._first = 0
        self._block: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def num_samples(self) -> int:
        """Samples of all data sets."""
        return sum(self._sizes)

    @property
    def epoch_draws(self) -> int:
        """Draws per epoch."""
        return sum(self._draws)

    @property
    def draws_of_all(self) -> int:
        """A number of consecutive draws that contain every sample, wherever they start."""
        # Twice the size of a data set contains a whole pass over it.
        epochs = max(
            1 if number % size == 0 else -(-2 * size // number)
            for size, number in zip(self._sizes, self._draws, strict=True)
        )
        return (epochs + 1) * self.epoch_draws

    def index(self, cursor: int) -> int:
        """Number of the sample that is drawn after `cursor` others, over all epochs."""
        if not self._first <= cursor < self._first + len(self._block):
            epoch = cursor // self.epoch_draws
            self._first, self._block = cursor, self._samples(epoch, self._slots.block(cursor))
        return int(self._block[cursor - self._first])

    def _samples(self, epoch: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples of some slots of an epoch; its first slots are those of the first data set."""
        sources = np.searchsorted(self._slot_ends, slots, side="right")
        samples = np.empty_like(slots)
        for source in np.unique(sources).tolist():
            at, number = sources == source, self._draws[source]
            before = slots[at] - (self._slot_ends[source] - number) + epoch * number
            samples[at] = self._passes[source].numbers(before) + self._first_samples[source]
        return samples


def sample_order(data: DataConfig, dataset: Dataset, *, seed: int) -> MixedOrder:
    """The order in which a run draws the samples of its data.

    Raises:
        DataError: The weight of a source is so small that an epoch draws none of its samples.
    """
    return MixedOrder(dataset.sizes, epoch_draws(data, dataset), seed=seed, shuffle=data.shuffle)


def epoch_draws(data: DataConfig, dataset: Dataset) -> list[int]:
    """Draws from each source per epoch: its weight times its samples, rounded half up.

    Raises:
        DataError: An epoch draws none of the samples of a source.
    """
    draws = []
    for source, size in zip(data.all_sources, dataset.sizes, strict=True):
        # The decimal number as it was written; 0.1 as a float is a little more than a tenth.
        exact = Fraction(repr(float(source.weight))) * size
        draws.append(int(exact + Fraction(1, 2)))
        if not draws[-1]:
            raise DataError(
                f"data.sources: {source.name}: weight={source.weight:g} of {size} samples draws "
                "none of them in an epoch; raise the weight, or remove the source"
            )
    return draws


def shares(data: DataConfig, dataset: Dataset) -> list[str]:
    """For each source a line with its number of samples, and its draws and share of an epoch.

    Raises:
        DataError: As `epoch_draws`.
    """
    draws = epoch_draws(data, dataset)
    return [
        f"{source.name}: {size} samples, weight {source.weight:g}: {number} draws per epoch "
        f"({number / sum(draws):.1%})"
        for source, size, number in zip(data.all_sources, dataset.sizes, draws, strict=True)
    ]
