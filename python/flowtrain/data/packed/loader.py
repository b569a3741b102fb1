"""A `DataLoader` whose batches are balanced over ranks and microbatches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import IterableDataset, default_collate

from flowtrain.data.packed.agreement import Agreement
from flowtrain.data.packed.indexed import IndexedSource
from flowtrain.data.packed.seeds import seed_of
from flowtrain.data.packed.sizes import Fields, Given
from flowtrain.data.packed.source import (
    Loaded,
    Loading,
    Oversize,
    Source,
    StreamPosition,
    leaves_out,
)
from flowtrain.data.packed.streamed import StreamedSource
from flowtrain.packing import FormedStep, Microbatch, PackingError, StepShape
from flowtrain.packing.slots import whole
from flowtrain_core.packing.interface import Objective

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class PackedLoader:
    """Loads microbatches that cost the same on every rank, in place of a `DataLoader`.

    loader = PackedLoader(dataset, 8, True, collate_fn=collate, token_cap=8192, targets="labels")
    for batch, microbatch in loader:
        loss = model(**batch).loss * microbatch.mean_weight
        loss.backward()

    A step has as many samples as before, `batch_size` for each microbatch of each rank; which of
    them meet is decided by `flowtrain_core.packing.schedule`. With each batch comes its
    `Microbatch`: what it is, and what it weighs.

    **Ranks.** Every rank computes the same plan from the same sizes, so that none is sent: give
    every rank the whole data set, and no `DistributedSampler`. Ranks of torch.distributed compare
    checksums of arguments, sizes and plan when an iteration begins, and of a stream in each step
    and at its end: one that differs is an error on all of them. So all ranks make the loader, and
    iterate it as often. (Of a map-style data set sizes are compared, not contents.)

    **Loss.** Packed microbatches differ in samples and tokens, so that the mean of their means is
    not the mean of the step. With `targets`, the loop keeps it exact:

        loss = model(**batch).loss * microbatch.mean_weight       # a mean over targets
        loss = loss_sum * microbatch.sum_weight                   # a sum over targets

    where gradients are averaged over ranks, as DDP and FSDP do; the weights hold the number of
    ranks. Where the reducer sums, `loss_sum / microbatch.step_targets` is the same, but for a
    `filler`, which counts for nothing. Do not divide by accumulation steps as well, and take
    sums where a microbatch may be without any target: its mean is not a number.

    **Data.** A map-style data set is planned before its samples are read: sizes are taken from
    arrays, or read once, when the loader is made. An iterable one is planned where it is read, in
    the workers; every rank reads the whole stream, and `collate_fn` runs, in the worker, on the
    rank's own samples alone. So let it yield what is cheap (text, paths, sizes) and decode in
    `collate_fn`. Its workers take turns with whole steps of their own shares, so that
    `num_workers`, the same on every rank, decides which samples form a step, and
    `prefetch_factor` counts steps.

    **Resuming.** `state_dict(microbatch)` is the place after that batch; a loader that was made
    alike goes on from it to the same batches, in the middle of an epoch or a step. Without an
    argument it is the place after the last batch that was yielded, which is another one where
    something between the loader and the loop (a prefetcher) has looked ahead. An
    iterable data set goes on from its own `state_dict`, if it or its iterator has one, else it is
    read again up to the place. One with `state_dict` stays where it was: workers read copies of it,
    and without workers a `copy.deepcopy` is read. What data sets draw at random is theirs to
    restore.

    **Closing.** Ranks compare plans over connections that stay open until `close()`, the end of a
    `with loader:`, or the end of the object. A program that makes many loaders closes each of them,
    at the same point on every rank.

    Args:
        dataset: Map-style (`__getitem__` and `__len__`) or iterable; the same on every rank.
        batch_size: Samples of a microbatch in the mean.
        shuffle: Whether to draw each epoch's order from seed and epoch; not for streams.
        token_cap: Most tokens of a microbatch.
        microbatches: Microbatches of a rank in each step: the loop's accumulation steps. None
            takes the fewest that hold a step; the loop then steps where `microbatch.ends_step`.
        length: Tokens of a sample: a column (a number, or a row of tokens), a function of a
            sample, or one number per sample.
        cost: What a sample costs, encoder and backbone, likewise; None takes its tokens.
        targets: Target tokens of a sample, likewise; of a row of labels, those from the second on
            that are not -100.
        objective: Where ranks meet: "lockstep", in each microbatch (FSDP); "free", once a step
            (DDP with `no_sync`).
        max_age: Steps that a sample may wait for its place. With 0 steps are exact batches; else
            they are filled by tokens, without `batch_size`.
        window: With max_age: what waits before a step is formed, in steps' token capacity.
        oversize: What to do with a sample above the cap: an error, or leave it out and list it
            in `left_out`.
        seed: Of the order of epochs, and of what workers draw at random: with the epoch and the
            rank. Workers read a stream with the same seed on every rank, and run `collate_fn` with
            one of its own for each microbatch.
        drop_last: Leave out the samples that do not fill a last step. Else ranks that are left
            without a sample there get a `filler`.
        collate_fn: From a list of samples to a batch.
        num_workers: Processes that load; 0 loads in this one.
        rank: This data-parallel rank; with `ranks` taken from torch.distributed where it is
            initialized and they are not given.
        ranks: Data-parallel ranks. Where they are given, nothing is compared.
        group: Process group of the data-parallel ranks, in place of `rank` and `ranks`; None for
            all processes. Each of its ranks makes the loader, and iterates it as often.
        timeout_s: Timeout for the other ranks, where plans are compared.
        options: Others of `DataLoader`, such as pin_memory and prefetch_factor.

    Raises:
        PackingError: An argument, a field of a sample, or a sample above the cap; while loading
            also a step that its microbatches do not hold.
        RuntimeError: Another rank did not make its loader.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        *,
        token_cap: int,
        microbatches: int | None = 1,
        length: Given = "input_ids",
        cost: Given | None = None,
        targets: Given | None = None,
        objective: Objective = "lockstep",
        max_age: int = 0,
        window: float = 1.05,
        oversize: Oversize = "error",
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        rank: int | None = None,
        ranks: int | None = None,
        group: ProcessGroup | None = None,
        timeout_s: float = 1800.0,
        **options: Any,
    ) -> None:
        # States and what ranks compare are of plain numbers, which NumPy's are not.
        seed, num_workers = operator.index(seed), operator.index(num_workers)
        if seed < 0 or timeout_s <= 0:
            raise PackingError(
                f"seed={seed}, timeout_s={timeout_s}: a seed is at least 0, a timeout above it"
            )
        for name in ("sampler", "batch_sampler", "in_order", "generator"):
            if name in options:
                raise PackingError(
                    f"{name}: a PackedLoader orders samples itself, alike on every rank; leave it "
                    "out (shuffle and seed choose the order)"
                )
        this_rank, num_ranks = _rank_of(rank, ranks, group)
        # Of its own, so that a loop that is resumed finds torch's generator as it left it.
        self._generator = torch.Generator()
        loading = Loading(
            shape=StepShape(
                ranks=num_ranks,
                token_cap=token_cap,
                microbatches=microbatches,
                batch_size=batch_size,
                objective=objective,
                max_age=max_age,
                window=window,
                drop_last=drop_last,
            ),
            rank=this_rank,
            leave_out=leaves_out(oversize),
            collate=collate_fn or default_collate,
            options={"num_workers": num_workers, "generator": self._generator, **options},
        )
        fields = Fields(length=length, cost=cost, targets=targets)
        self._source: Source
        if not _is_stream(dataset):
            self._source = IndexedSource(dataset, fields, loading, seed=seed, shuffle=shuffle)
        elif shuffle or options.get("persistent_workers"):
            raise PackingError(
                "shuffle and persistent_workers: a stream has an order of its own, and its workers "
                "start with each epoch; leave them out"
            )
        else:
            self._source = StreamedSource(dataset, fields, loading, seed=seed)
        self.dataset = dataset
        # Ranks read a stream alike, what its workers draw included.
        self._seeds = (seed,) if _is_stream(dataset) else (seed, this_rank)
        # Where iterations begin, and the place after the last batch.
        self._begin = self._place = self._source.start(0)
        self._agreement = None
        if rank is None and num_ranks > 1:
            made_with = {**self._source.order, **self._source.plan}
            self._agreement = Agreement(group, timeout_s=timeout_s, made_with=made_with)
        self._running: Generator[Loaded] | None = None
        self._closed = False

    @property
    def left_out(self) -> list[int] | list[StreamPosition]:
        """Samples above the cap that are left out.

        Of a map-style data set the indices of all of them, sorted. Of a stream those met so far,
        each once, as (epoch, worker, position).
        """
        return self._source.left_out

    def __len__(self) -> int:
        """Batches of an epoch on this rank.

        Raises:
            TypeError: They depend on how samples fall, or the data set is a stream.
        """
        return len(self._source)

    def __iter__(self) -> Iterator[tuple[Any, Microbatch]]:
        """Batches of the epoch, or its rest from the place that was loaded, each with what it is.

        The two come together, so that whatever looks ahead or reorders keeps them together. An
        iterator that is dropped before its end changes nothing: the next begins where it began. The
        next epoch follows when this one is exhausted (of a map-style data set, when its last batch
        has been yielded), or by `set_epoch`. A new iterator ends the one before it.

        Raises:
            PackingError: A step that its microbatches do not hold, one that had begun as another
                when the state was saved, a sample of a stream above the cap, or a rank that has
                other steps than this one. Or the loader was closed.
            RuntimeError: The iterator was ended, or the ranks could not be compared.
        """
        if self._closed:
            raise PackingError("this loader was closed; make another one")
        self._end_iteration()
        if self._place is not self._begin and self._source.ended(self._place):
            self._begin = self._source.start(self._place["epoch"] + 1)
        self._place = begin = self._begin
        self._generator.manual_seed(seed_of(*self._seeds, begin["epoch"]))
        self._running = running = self._source.load(begin)
        try:
            compared = -1
            for batch, microbatch, step, content in running:
                if compared < 0 or (microbatch.step > compared and not self._source.planned_ahead):
                    self._compare(step, content)
                    compared = microbatch.step
                self._place = microbatch.place
                yield batch, microbatch
                if self._running is not running:
                    raise RuntimeError(
                        "this iterator of the loader was ended by a newer one, by set_epoch, by "
                        "load_state_dict or by close; a PackedLoader has one place: exhaust one "
                        "iterator before the next, or make a second loader"
                    )
            if compared < 0 or not self._source.planned_ahead:
                self._compare(None)
            self._begin = self._place = self._source.start(begin["epoch"] + 1)
        finally:
            running.close()

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be of this epoch; where it goes on within it, it still does.

        Raises:
            PackingError: The epoch is not a whole number of at least 0.
        """
        epoch = whole(epoch, "epoch", least=0)
        self._end_iteration()
        if self._begin["epoch"] != epoch:
            self._begin = self._source.start(epoch)
        self._place = self._begin

    def state_dict(self, after: Microbatch | None = None) -> dict[str, Any]:
        """The place after a batch; plain numbers, but for what a stream says of itself.

        Of a map-style data set it is the same on every rank.

        Args:
            after: What came with the batch. None is the last batch that was yielded: give it where
                anything between the loader and the loop looks ahead.
        """
        place = self._place if after is None else after.place
        return {"order": self._source.order, "plan": self._source.plan, "place": place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a state.

        At the end of a step the loader may have other ranks, and whatever else only decides where
        the samples of a step go, as long as steps have as many samples (with `max_age` as many
        microbatches over all ranks). Within a step it must be made as it was.

        Raises:
            PackingError: It is no state, or of another loader: samples would be repeated or left
                out.
        """
        if missing := sorted({"order", "place", "plan"} - state.keys()):
            raise PackingError(
                f"state without {', '.join(missing)}; give what state_dict of a loader returned"
            )
        place = state["place"]
        _check_same("order", state["order"], self._source.order, _MAKE_ALIKE)
        if place["microbatch"]:
            _check_same(
                f"plan of step {place['step']}, which had begun",
                state["plan"],
                self._source.plan,
                "make the loader as it was then, or take a state of the end of a step",
            )
        self._end_iteration()
        self._begin = self._place = place

    def close(self) -> None:
        """End the running iterator, and close the connections to the other ranks.

        A second call does nothing. The state, and what was left out, can still be read.
        """
        self._closed = True
        self._end_iteration()
        if self._agreement is not None:
            self._agreement.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compare(self, step: FormedStep | None, content: int = 0) -> None:
        if self._agreement is not None:
            self._agreement.check(self._place, step, content)

    def _end_iteration(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


_MAKE_ALIKE = (
    "make the loader as it was then, but for the ranks, where batch_size x microbatches x ranks "
    "(with max_age, microbatches x ranks) stays the same"
)


def _check_same(what: str, then: dict[str, Any], now: dict[str, Any], way_out: str) -> None:
    for name in now:
        if then.get(name) != now[name]:
            raise PackingError(
                f"state: saved with {name}={then.get(name)}, and this loader has {now[name]}; it "
                f"decides the {what}: samples would be repeated or left out; {way_out}"
            )


def _rank_of(rank: int | None, ranks: int | None, group: ProcessGroup | None) -> tuple[int, int]:
    """This rank and their number."""
    if group is not None and rank is not None:
        raise PackingError(f"rank={rank} with a group: the group says it; give one of them")
    if (rank is None) != (ranks is None):
        raise PackingError(f"rank={rank}, ranks={ranks}: give both of them or none")
    if rank is None or ranks is None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
        if rank < 0:
            raise PackingError("group: this process is not in it; only its ranks make the loader")
        return rank, ranks
    if not 0 <= rank < ranks:
        raise PackingError(f"rank={rank}: it must be from 0 to ranks={ranks} less 1")
    return rank, ranks


def _is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
