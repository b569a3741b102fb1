"""Map-style data sets, whose steps are planned before their samples are read."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import asdict
from typing import Any

import numpy
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from flowtrain.data.order import SampleOrder
from flowtrain.data.packed.sizes import Fields, sizes_of
from flowtrain.data.packed.source import LoadConfig, Loaded, Place, order_of, too_long_error
from flowtrain.packing import (
    FormedStep,
    Microbatch,
    PackingError,
    Sizes,
    StepBuilder,
    StepShape,
    microbatches_of,
)

IntArray = NDArray[numpy.int64]

Planned = tuple[Microbatch, FormedStep]
"""A microbatch and its step."""

# Options of a DataLoader that also apply to the pass that reads sizes.
_OF_WORKERS = ("num_workers", "multiprocessing_context", "worker_init_fn", "prefetch_factor")


class IndexedSource:
    """Loads the samples of this rank alone; sizes are read on every rank.

    Args:
        dataset: A map-style data set.
        fields: Sources of the sizes.
        config: How to load.
        seed: Seed of the order of each epoch.
        shuffle: Whether to permute; otherwise samples keep the order of the data set.

    Raises:
        PackingError: A size cannot be read, a sample is above `max_tokens`, or no sample is left.
    """

    def __init__(
        self, dataset: Any, fields: Fields, config: LoadConfig, *, seed: int, shuffle: bool
    ) -> None:
        workers = {name: config.options[name] for name in _OF_WORKERS if name in config.options}
        sizes = sizes_of(dataset, fields, **workers)
        cap = config.shape.max_tokens
        above = sizes.tokens > cap
        self.dropped: list[int] = numpy.flatnonzero(above).tolist()
        if self.dropped and not config.drop:
            first = self.dropped[0]
            raise too_long_error(first, sizes.tokens.item(first), cap)
        kept: IntArray = numpy.flatnonzero(~above)
        if not len(kept):
            raise PackingError(
                f"{len(sizes)} samples, {len(self.dropped)} of them above max_tokens={cap}: "
                "nothing is left to load"
            )
        self.planned_ahead = True
        self.order = {
            **order_of(config.shape),
            "seed": seed,
            "shuffle": shuffle,
            "samples": len(sizes),
            "tokens": zlib.crc32(sizes.tokens.tobytes()),
            # With equal sizes, this number decides which samples are above `max_tokens`.
            "dropped": len(self.dropped),
        }
        self.plan = {**asdict(config.shape), "sizes": sizes.checksum()}
        self._shape = config.shape
        self._num_samples = len(kept)
        order = SampleOrder(len(kept), seed, shuffle)
        self._sampler = _BatchSampler(sizes, kept, order, config.shape, config.rank)
        self._loader = DataLoader(
            dataset, batch_sampler=self._sampler, collate_fn=config.collate, **config.options
        )

    def start(self, epoch: int) -> Place:
        return {"epoch": epoch, "step": 0, "microbatch": 0, "cursor": 0, "waiting": []}

    def load(self, place: Place) -> Generator[Loaded]:
        sampled = self._sampler.begin(place)
        for batch in self._loader:
            # The sampler runs ahead of the loader.
            yield Loaded(batch, *sampled.popleft())

    def planned(self, place: Place) -> Iterator[Planned]:
        """The microbatches that `load` would load, without reading a sample."""
        sampled = self._sampler.begin(place)
        for _ in self._sampler:
            yield sampled.popleft()

    def ended(self, place: Place) -> bool:
        return next(self.planned(place), None) is None

    def __len__(self) -> int:
        shape = self._shape
        if shape.samples is None or shape.microbatches is None:
            raise TypeError("the number of batches is not known before they are planned")
        full, rest = divmod(self._num_samples, shape.samples)
        return (full + (rest > 0 and not shape.drop_last)) * shape.microbatches


class _BatchSampler:
    """Yields the sample indices of each microbatch."""

    def __init__(
        self, sizes: Sizes, kept: IntArray, order: SampleOrder, shape: StepShape, rank: int
    ) -> None:
        self._sizes = sizes
        self._kept = kept
        self._order = order
        self._shape = shape
        self._rank = rank
        self._place: Place = {}
        self._sampled: deque[Planned] = deque()

    def begin(self, place: Place) -> deque[Planned]:
        """Set the place where the next iteration starts.

        Returns:
            A queue that the iteration fills with its microbatches, in order.
        """
        self._place, self._sampled = place, deque()
        return self._sampled

    def __iter__(self) -> Iterator[list[int]]:
        place, sampled = self._place, self._sampled
        samples = _EpochSamples(self._sizes, self._kept, self._order, place)
        builder = StepBuilder(self._shape)
        builder.load(place["waiting"], self._sizes.of)
        while (step := builder.next(samples)) is not None:
            after = {
                "epoch": place["epoch"],
                "step": place["step"] + 1,
                "microbatch": 0,
                "cursor": samples.cursor,
                "waiting": builder.waiting,
            }
            for microbatch in microbatches_of(step, rank=self._rank, before=place, after=after):
                sampled.append((microbatch, step))
                yield list(microbatch.samples)
            place = after


class _EpochSamples:
    """The samples of an epoch in order, from a cursor on."""

    def __init__(self, sizes: Sizes, kept: IntArray, order: SampleOrder, place: Place) -> None:
        self._sizes = sizes
        self._keys = kept[order.of_epoch(place["epoch"])]
        self.cursor = place["cursor"]

    def take(self, count: int) -> tuple[IntArray, Sizes]:
        keys = self._keys[self.cursor : self.cursor + count]
        self.cursor += len(keys)
        return keys, self._sizes.of(keys)
