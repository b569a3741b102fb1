"""A `DataLoader` whose batches are balanced over ranks and microbatches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import IterableDataset, default_collate

from flowtrain.data.packed.accelerate import check_division, missing
from flowtrain.data.packed.agreement import Agreement
from flowtrain.data.packed.indexed import IndexedSource
from flowtrain.data.packed.ranks import rank_and_size
from flowtrain.data.packed.seeds import derive_seed
from flowtrain.data.packed.sizes import FieldOrValues, Fields
from flowtrain.data.packed.source import (
    LoadConfig,
    Loaded,
    Oversize,
    Source,
    StreamPosition,
    parse_oversize,
)
from flowtrain.data.packed.state import check_state
from flowtrain.data.packed.streamed import StreamedSource
from flowtrain.packing import FormedStep, Microbatch, PackingError, StepShape
from flowtrain.packing.slots import checked_int
from flowtrain_core.packing.interface import Objective

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class PackedLoader:
    """Loads microbatches that cost the same on every rank, in place of a `DataLoader`.

    loader = PackedLoader(dataset, 8, True, collate_fn=collate, max_tokens=8192, targets="labels")
    for batch, microbatch in loader:
        loss = model(**batch).loss * microbatch.mean_weight
        loss.backward()

    A step has as many samples as with a `DataLoader`: `batch_size` for each microbatch of each
    rank. `flowtrain_core.packing.schedule` decides which of them form a microbatch. Each batch
    comes with its `Microbatch`, which has its number in the step and the weights of its loss.

    **Ranks.** Every rank computes the same plan from the same sizes, and no plan is sent. So give
    every rank the whole data set, and no `DistributedSampler`. Ranks of torch.distributed compare
    checksums of arguments, sizes and plan when an iteration begins; for a stream also in each step
    and at its end. A difference is an error on all ranks. So all ranks must make the loader and
    iterate it equally often. (For a map-style data set sizes are compared, not contents.)

    **Loss.** Packed microbatches differ in samples and tokens, so the mean of their means is not
    the mean of the step. With `targets`, these weights make it exact:

        loss = model(**batch).loss * microbatch.mean_weight       # a mean over targets
        loss = loss_sum * microbatch.sum_weight                   # a sum over targets

    They include the number of ranks, for reducers that average gradients, as DDP and FSDP do. If
    the reducer sums, use `loss_sum / microbatch.step_targets`, and 0 for a `filler`. Do not divide
    by accumulation steps. If a microbatch may have no target, use sums: its mean is not a number.

    **Data.** A map-style data set is planned before its samples are read. Sizes are taken from
    arrays, or read once when the loader is made. An iterable data set (a stream) is planned in the
    workers, while it is read. Every rank reads the whole stream, but `collate_fn` runs, in the
    worker, for the rank's own samples alone. So yield what is cheap (text, paths, sizes) and decode
    in `collate_fn`. Workers alternate, each with whole steps of its own share. So `num_workers`,
    which must be equal on all ranks, decides which samples form a step, and `prefetch_factor`
    counts steps.

    **Resuming.** `state_dict(microbatch)` is the place after that batch. A loader with the same
    arguments continues from it with the same batches, also within an epoch or a step. Without an
    argument it is the place after the last batch that was yielded, which is a later one if a
    prefetcher has read ahead. A stream continues from its own `state_dict`, if it or its iterator
    has one; otherwise it is read again up to the place. The `dataset` object itself does not
    advance: workers read copies of it, and without workers a `copy.deepcopy` is read. The loader
    does not restore what the data set draws at random.

    **Closing.** Ranks compare plans over connections that stay open until `close()`, the end of a
    `with loader:`, or the end of the object. A program that makes many loaders should close each of
    them, at the same point on every rank.

    Args:
        dataset: Map-style (`__getitem__` and `__len__`) or iterable; the same on every rank.
        batch_size: Mean number of samples per microbatch.
        shuffle: Whether to draw the order of each epoch from seed and epoch; not for streams.
        max_tokens: Maximum tokens per microbatch.
        microbatches: Microbatches per rank and step: the accumulation steps of the loop. None takes
            the minimum that holds the step; the loop then steps when `microbatch.ends_step`.
        length: Tokens of a sample: a column (a number, or a row of tokens), a function of a
            sample, or one number per sample.
        cost: Cost of a sample, encoder and backbone, in the same forms; None takes its tokens.
        targets: Target tokens of a sample, in the same forms. In a row of labels, those from the
            second on that are not -100 count.
        objective: Where ranks meet: "lockstep", in each microbatch (FSDP); "accumulate", once per
            step (DDP with `no_sync`).
        max_age: Maximum steps that a sample may wait. With 0, steps are exact batches; otherwise
            steps are filled by tokens, without `batch_size`.
        window: With max_age: samples to read before a step is formed, in multiples of the token
            capacity of a step.
        oversize: What to do with a sample above `max_tokens`: raise an error, or drop it and list
            it in `dropped`.
        seed: Seed of the order of epochs and of the workers' random numbers, combined with epoch
            and rank. Workers read a stream with the same seed on every rank, and run `collate_fn`
            with a seed of its own for each microbatch.
        drop_last: Whether to drop the samples that do not fill the last step. Otherwise ranks
            without a sample there get a `filler`.
        collate_fn: Makes a batch of a list of samples.
        num_workers: Loader processes; 0 loads in this process.
        rank: This data-parallel rank. `rank` and `ranks` default to those of torch.distributed, if
            it is initialized.
        ranks: Number of data-parallel ranks. If given, ranks compare nothing.
        group: Process group of the data-parallel ranks, instead of `rank` and `ranks`; None for all
            processes. All its ranks make the loader and iterate it equally often.
        timeout_s: Timeout for the other ranks when plans are compared.
        options: Other arguments of `DataLoader`, such as pin_memory and prefetch_factor.

    Raises:
        PackingError: An argument or a field of a sample cannot be used, or a sample is above
            `max_tokens`; while loading, also a step that does not fit into its microbatches.
        RuntimeError: Another rank did not make its loader.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        *,
        max_tokens: int,
        microbatches: int | None = 1,
        length: FieldOrValues = "input_ids",
        cost: FieldOrValues | None = None,
        targets: FieldOrValues | None = None,
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
        # States and comparisons between ranks need Python's numbers, not NumPy's.
        seed, num_workers = operator.index(seed), operator.index(num_workers)
        if seed < 0 or timeout_s <= 0:
            raise PackingError(
                f"seed={seed}, timeout_s={timeout_s}: seed must be at least 0, timeout_s above 0"
            )
        for name in ("sampler", "batch_sampler", "in_order", "generator"):
            if name in options:
                raise PackingError(
                    f"{name}: a PackedLoader orders samples itself, equally on every rank; leave "
                    "it out (shuffle and seed choose the order)"
                )
        this_rank, num_ranks = rank_and_size(rank, ranks, group)
        # A generator of its own, so that the loader draws nothing from torch's global one.
        self._generator = torch.Generator()
        loading = LoadConfig(
            shape=StepShape(
                ranks=num_ranks,
                max_tokens=max_tokens,
                microbatches=microbatches,
                batch_size=batch_size,
                objective=objective,
                max_age=max_age,
                window=window,
                drop_last=drop_last,
            ),
            rank=this_rank,
            drop=parse_oversize(oversize),
            collate=collate_fn or default_collate,
            options={"num_workers": num_workers, "generator": self._generator, **options},
        )
        fields = Fields(length=length, cost=cost, targets=targets)
        self._source: Source
        if not _is_stream(dataset):
            self._source = IndexedSource(dataset, fields, loading, seed=seed, shuffle=shuffle)
        elif shuffle or options.get("persistent_workers"):
            raise PackingError(
                "shuffle, persistent_workers: a stream keeps its own order and starts its workers "
                "in each epoch; leave them out"
            )
        else:
            self._source = StreamedSource(dataset, fields, loading, seed=seed)
        self.dataset = dataset
        # All ranks read the same stream, and so need the same random numbers.
        self._seeds = (seed,) if _is_stream(dataset) else (seed, this_rank)
        # The place where the next iteration begins, and the place after the last batch.
        self._begin = self._place = self._source.start(0)
        self._agreement = None
        if rank is None and num_ranks > 1:
            settings = {**self._source.order, **self._source.plan}
            self._agreement = Agreement(group, timeout_s=timeout_s, settings=settings)
        self._running: Generator[Loaded] | None = None
        self._closed = False

    @property
    def dropped(self) -> list[int] | list[StreamPosition]:
        """Samples above `max_tokens` that are dropped.

        For a map-style data set, the indices of all of them, sorted. For a stream, those read so
        far as (epoch, worker, position), each once.
        """
        return self._source.dropped

    def __getattr__(self, name: str) -> Any:
        raise missing(name)

    def __len__(self) -> int:
        """Batches of an epoch on this rank.

        Raises:
            TypeError: The number is known only after planning, or the data set is a stream.
        """
        return len(self._source)

    def __iter__(self) -> Iterator[tuple[Any, Microbatch]]:
        """Yield pairs of batch and `Microbatch`, from the loaded place to the end of the epoch.

        An iterator that is dropped before its end changes nothing: the next one begins at the same
        place. The next epoch begins when this one is exhausted (for a map-style data set, when its
        last batch has been yielded), or by `set_epoch`. A new iterator ends the one before it.

        Raises:
            PackingError: A step does not fit into its microbatches, differs from the step that had
                begun when the state was saved, or differs on another rank; a sample of a stream is
                above `max_tokens`; the loader was closed; or, with `targets` and gradients, there
                is an `Accelerator` with accumulation steps.
            RuntimeError: The iterator was ended, or ranks could not compare their plans.
        """
        if self._closed:
            raise PackingError("this loader was closed; make a new one")
        self._end_iteration()
        if self._place is not self._begin and self._source.ended(self._place):
            self._begin = self._source.start(self._place["epoch"] + 1)
        self._place = begin = self._begin
        self._generator.manual_seed(derive_seed(*self._seeds, begin["epoch"]))
        self._running = running = self._source.load(begin)
        try:
            compared = -1
            for batch, microbatch, step, content in running:
                if compared < 0 or (microbatch.step > compared and not self._source.planned_ahead):
                    self._compare(step, content)
                    compared = microbatch.step
                if microbatch.targets is not None:
                    check_division()
                self._place = microbatch.place
                yield batch, microbatch
                if self._running is not running:
                    raise RuntimeError(
                        "this iterator of the loader was ended by a newer one, by set_epoch, by "
                        "load_state_dict or by close; a PackedLoader has one iterator at a time: "
                        "exhaust it before the next, or make a second loader"
                    )
            if compared < 0 or not self._source.planned_ahead:
                self._compare(None)
            self._begin = self._place = self._source.start(begin["epoch"] + 1)
        finally:
            running.close()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a place within this epoch is kept.

        Raises:
            PackingError: The epoch is not a whole number of at least 0.
        """
        epoch = checked_int(epoch, "epoch", minimum=0)
        self._end_iteration()
        if self._begin["epoch"] != epoch:
            self._begin = self._source.start(epoch)
        self._place = self._begin

    def state_dict(self, after: Microbatch | None = None) -> dict[str, Any]:
        """The place after a batch: plain numbers, and the states of a stream.

        For a map-style data set it is the same on every rank.

        Args:
            after: The microbatch of the batch. None is the last batch that was yielded, which may
                be a later one than the loop's if a prefetcher reads ahead.
        """
        place = self._place if after is None else after.place
        return {"order": self._source.order, "plan": self._source.plan, "place": place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue from a state.

        After the last microbatch of a step, the loader may have another number of ranks and other
        arguments that decide only where the samples of a step go, as long as a step has the same
        number of samples (with `max_age`, of microbatches over all ranks). Within a step all
        arguments must be the same.

        Raises:
            PackingError: The state is incomplete, or of a loader with other arguments: samples
                would be repeated or omitted.
        """
        check_state(state, order=self._source.order, plan=self._source.plan)
        self._end_iteration()
        self._begin = self._place = state["place"]

    def close(self) -> None:
        """End the running iterator and close the connections to the other ranks.

        A second call does nothing. `state_dict` and `dropped` can still be read.
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


def _is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
