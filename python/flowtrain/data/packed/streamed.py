"""Iterable data sets, whose steps are planned in the workers that read them."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flowtrain.data.packed.seeds import derive_seed, seeded
from flowtrain.data.packed.sizes import Fields
from flowtrain.data.packed.source import LoadConfig, Loaded, Place, StreamPosition, order_of
from flowtrain.data.packed.stream import Stream
from flowtrain.data.packed.workers import wrapped_init
from flowtrain.packing import FormedStep, Microbatch, PackingError, StepBuilder, microbatches_of


class StreamedSource:
    """Reads the same stream on every rank and collates the samples of this rank alone.

    Workers alternate, each with whole steps of its own share of the stream.

    Args:
        dataset: An iterable data set. It divides itself among workers, not among ranks.
        fields: Sources of the sizes.
        config: How to load.
        seed: Seed of the workers' random numbers.
    """

    def __init__(self, dataset: Any, fields: Fields, config: LoadConfig, *, seed: int) -> None:
        self._dataset = dataset
        self._fields = fields
        self._config = config
        # Without options: a spawned worker receives this pickled, which a generator cannot be.
        self._worker_config = replace(config, options={})
        begin = wrapped_init(config.options.get("worker_init_fn"))
        self._options = {**config.options, "worker_init_fn": begin}
        self._workers: int = config.options["num_workers"]
        self.dropped: list[StreamPosition] = []
        self._listed: set[StreamPosition] = set()
        self.planned_ahead = False
        self.order = {**order_of(config.shape), "num_workers": self._workers, "seed": seed}
        self.plan = asdict(config.shape)

    def start(self, epoch: int) -> Place:
        streams = [Stream.start() for _ in range(max(1, self._workers))]
        return {"epoch": epoch, "step": 0, "microbatch": 0, "worker": 0, "streams": streams}

    def load(self, place: Place) -> Generator[Loaded]:
        # A data set that is read in this process would keep the place of its last iterator.
        dataset = self._dataset if self._workers else _copy_of(self._dataset)
        steps = DataLoader(
            _StepDataset(dataset, self._fields, self._worker_config, place),
            batch_size=None,
            collate_fn=_identity,
            **self._options,
        )
        for step, batches in steps:
            # Samples that are read again are listed once.
            for number in step.dropped:
                position = StreamPosition(place["epoch"], step.worker, number)
                if position not in self._listed:
                    self._listed.add(position)
                    self.dropped.append(position)
            if step.formed is None:
                continue
            before, after = {**place, "worker": step.worker}, _after(place, step)
            rank = self._config.rank
            mine = microbatches_of(step.formed, rank=rank, before=before, after=after)
            for batch, microbatch in zip(batches, mine, strict=True):
                yield Loaded(batch, microbatch, step.formed, step.content)
            place = after

    def ended(self, place: Place) -> bool:
        return False

    def __len__(self) -> int:
        raise TypeError("the number of batches of a stream is not known before it is read")


@dataclass(frozen=True, kw_only=True, slots=True)
class _WorkerStep:
    """A step as its worker sends it.

    Attributes:
        worker: The worker that read it.
        formed: Its samples and plan. None after the last step of the worker, and for a worker that
            comes before the one with the next step.
        after: Place of the worker's stream after the step.
        dropped: Positions of samples above `max_tokens` that were dropped since the last step.
        content: Checksum of all values that the worker has measured.
    """

    worker: int
    formed: FormedStep | None
    after: Place
    dropped: list[int]
    content: int = 0


class _StepDataset(IterableDataset[tuple[_WorkerStep, list[Any]]]):
    """Yields the steps of a stream with the batches of this rank."""

    def __init__(self, dataset: Any, fields: Fields, config: LoadConfig, place: Place) -> None:
        self.dataset = dataset
        self._fields = fields
        self._config = config
        self._place = place

    def __iter__(self) -> Iterator[tuple[_WorkerStep, list[Any]]]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        first = self._place["worker"]  # The worker with the next step.
        place = self._place if worker == first else {**self._place, "microbatch": 0}
        begin = place["streams"][worker]
        if worker < first:
            # A DataLoader always starts with worker 0.
            yield _WorkerStep(worker=worker, formed=None, after=begin, dropped=[]), []
        config, shape = self._config, self._config.shape
        stream = Stream(self.dataset, self._fields, max_tokens=shape.max_tokens, drop=config.drop)
        stream.restore(begin, epoch=place["epoch"])
        builder = StepBuilder(shape)
        builder.load(begin["waiting"], stream.sizes)
        while (formed := builder.next(stream)) is not None:
            # All samples are taken first, as collate may change those that it is given.
            microbatches = microbatches_of(formed, rank=config.rank, before=place, after=place)
            mine = [_samples(stream, each) for each in microbatches]
            batches = []
            for microbatch, samples in zip(microbatches, mine, strict=True):
                with self._seeded(microbatch):
                    batches.append(config.collate(samples))
            stream.discard(formed.placed)
            read = _WorkerStep(
                worker=worker,
                formed=formed,
                after=stream.place(builder.waiting),
                dropped=stream.take_dropped(),
                content=stream.content,
            )
            yield read, batches
            place = {**place, "microbatch": 0}
        # Samples dropped after the last step.
        dropped = stream.take_dropped()
        yield _WorkerStep(worker=worker, formed=None, after=begin, dropped=dropped), []

    def _seeded(self, microbatch: Microbatch) -> AbstractContextManager[None]:
        """Seed the collation of a microbatch apart from the stream."""
        info = get_worker_info()
        if info is None:
            return nullcontext()
        return seeded(derive_seed(info.seed, self._config.rank, *microbatch.samples))


def _samples(stream: Stream, microbatch: Microbatch) -> list[Any]:
    samples = [stream.sample(key) for key in microbatch.samples]
    # The samples of a filler are in another microbatch as well.
    return [copy.copy(sample) for sample in samples] if microbatch.filler else samples


def _after(place: Place, step: _WorkerStep) -> Place:
    streams = [*place["streams"]]
    streams[step.worker] = step.after
    return {
        "epoch": place["epoch"],
        "step": place["step"] + 1,
        "microbatch": 0,
        "worker": (step.worker + 1) % len(streams),
        "streams": streams,
    }


def _copy_of(dataset: Any) -> Any:
    """The data set to read in this process: a copy if it has a state, else the object itself."""
    if not hasattr(dataset, "state_dict"):
        if isinstance(dataset, Iterator) and not isinstance(dataset, IterableDataset):
            raise PackingError(
                f"dataset ({type(dataset).__name__}): an iterator can be read once, but each epoch "
                "starts anew; give an object whose __iter__ returns a new iterator"
            )
        return dataset
    try:
        return copy.deepcopy(dataset)
    except Exception as error:
        raise PackingError(
            f"dataset ({type(dataset).__name__}): it has a state_dict but cannot be copied "
            f"({error}), so reading it in this process would change its state; support "
            "copy.deepcopy, or set num_workers to at least 1"
        ) from error


def _identity(read: Any) -> Any:
    return read
