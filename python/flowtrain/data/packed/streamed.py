"""Iterable data sets: steps are planned where the stream is read, in the workers."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flowtrain.data.packed.seeds import drawing_from, seed_of
from flowtrain.data.packed.sizes import Fields
from flowtrain.data.packed.source import Loaded, Loading, Place, StreamPosition, order_of
from flowtrain.data.packed.stream import Stream
from flowtrain.data.packed.workers import init_within
from flowtrain.packing import FormedStep, Microbatch, PackingError, StepFormer, microbatches_of


class StreamedSource:
    """Reads the same stream on every rank, and collates this rank's samples alone.

    Workers take turns with whole steps, each of its own share of the stream.

    Args:
        dataset: An iterable data set; it shares itself out among workers, and not among ranks.
        fields: Where sizes come from.
        loading: How it is loaded.
        seed: Seed of what its workers draw.
    """

    def __init__(self, dataset: Any, fields: Fields, loading: Loading, *, seed: int) -> None:
        self._dataset = dataset
        self._fields = fields
        self._loading = loading
        # A worker that is not forked receives it pickled, which a generator cannot be.
        self._read_by = replace(loading, options={})
        begin = init_within(loading.options.get("worker_init_fn"))
        self._options = {**loading.options, "worker_init_fn": begin}
        self._workers: int = loading.options["num_workers"]
        self.left_out: list[StreamPosition] = []
        self._listed: set[StreamPosition] = set()
        self.planned_ahead = False
        self.order = {**order_of(loading.shape), "num_workers": self._workers, "seed": seed}
        self.plan = asdict(loading.shape)

    def start(self, epoch: int) -> Place:
        streams = [Stream.start() for _ in range(max(1, self._workers))]
        return {"epoch": epoch, "step": 0, "microbatch": 0, "worker": 0, "streams": streams}

    def load(self, place: Place) -> Generator[Loaded]:
        # Read in this process, a data set would keep where its last iterator was.
        dataset = self._dataset if self._workers else _copy_of(self._dataset)
        reading = DataLoader(
            _Reading(dataset, self._fields, self._read_by, place),
            batch_size=None,
            collate_fn=_as_it_is,
            **self._options,
        )
        for step, batches in reading:
            # Read again, in another iteration or from a state, they are the same ones.
            for number in step.left_out:
                position = StreamPosition(place["epoch"], step.worker, number)
                if position not in self._listed:
                    self._listed.add(position)
                    self.left_out.append(position)
            if step.formed is None:
                continue
            before, after = {**place, "worker": step.worker}, _after(place, step)
            rank = self._loading.rank
            mine = microbatches_of(step.formed, rank=rank, before=before, after=after)
            for batch, microbatch in zip(batches, mine, strict=True):
                yield Loaded(batch, microbatch, step.formed, step.content)
            place = after

    def ended(self, place: Place) -> bool:
        return False

    def __len__(self) -> int:
        raise TypeError("the number of batches of a stream is not known before it is read")


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReadStep:
    """A step as its worker hands it on.

    Attributes:
        worker: Who read it.
        formed: Its samples and plan; None at the worker's end, and where it waits for its turn.
        after: Place of the worker's stream behind it.
        left_out: Positions of samples above the cap that were passed over on the way.
        content: Checksum of what was measured on the way.
    """

    worker: int
    formed: FormedStep | None
    after: Place
    left_out: list[int]
    content: int = 0


class _Reading(IterableDataset[tuple[_ReadStep, list[Any]]]):
    """Steps of a stream with this rank's batches."""

    def __init__(self, dataset: Any, fields: Fields, loading: Loading, place: Place) -> None:
        self.dataset = dataset
        self._fields = fields
        self._loading = loading
        self._place = place

    def __iter__(self) -> Iterator[tuple[_ReadStep, list[Any]]]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        turn = self._place["worker"]
        place = self._place if worker == turn else {**self._place, "microbatch": 0}
        begin = place["streams"][worker]
        if worker < turn:
            # A DataLoader asks its workers in turn, from the first on.
            yield _ReadStep(worker=worker, formed=None, after=begin, left_out=[]), []
        loading, shape = self._loading, self._loading.shape
        stream = Stream(
            self.dataset, self._fields, token_cap=shape.token_cap, leave_out=loading.leave_out
        )
        stream.restore(begin, epoch=place["epoch"])
        former = StepFormer(shape)
        former.load(begin["waiting"], stream.sizes)
        while (formed := former.next(stream)) is not None:
            # All are at hand before the first is collated, which may take its samples apart.
            every = microbatches_of(formed, rank=loading.rank, before=place, after=place)
            mine = [_samples(stream, each) for each in every]
            batches = []
            for microbatch, samples in zip(every, mine, strict=True):
                with self._drawing(microbatch):
                    batches.append(loading.collate(samples))
            stream.forget(formed.placed)
            read = _ReadStep(
                worker=worker,
                formed=formed,
                after=stream.place(former.waiting),
                left_out=stream.take_left_out(),
                content=stream.content,
            )
            yield read, batches
            place = {**place, "microbatch": 0}
        # Samples left out after the last step.
        left_out = stream.take_left_out()
        yield _ReadStep(worker=worker, formed=None, after=begin, left_out=left_out), []

    def _drawing(self, microbatch: Microbatch) -> AbstractContextManager[None]:
        """What a worker draws for its rank's batch: nothing that the stream would draw."""
        info = get_worker_info()
        if info is None:
            return nullcontext()
        return drawing_from(seed_of(info.seed, self._loading.rank, *microbatch.samples))


def _samples(stream: Stream, microbatch: Microbatch) -> list[Any]:
    samples = [stream.sample(key) for key in microbatch.samples]
    # A filler's samples are in their own microbatch as well.
    return [copy.copy(sample) for sample in samples] if microbatch.filler else samples


def _after(place: Place, step: _ReadStep) -> Place:
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
    """A copy of a data set that keeps its place, to be read in this process; any other as it is."""
    if not hasattr(dataset, "state_dict"):
        if isinstance(dataset, Iterator) and not isinstance(dataset, IterableDataset):
            raise PackingError(
                f"dataset ({type(dataset).__name__}): an iterator is read once, and each epoch "
                "reads the stream from its start; give what makes one, an object with __iter__"
            )
        return dataset
    try:
        return copy.deepcopy(dataset)
    except Exception as error:
        raise PackingError(
            f"dataset ({type(dataset).__name__}): it has a state_dict and cannot be copied "
            f"({error}), so that reading it in this process would move its own place; let "
            "copy.deepcopy copy it, or read it in workers with num_workers of at least 1"
        ) from error


def _as_it_is(read: Any) -> Any:
    return read
