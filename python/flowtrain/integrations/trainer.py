"""Packed microbatches for the Hugging Face Trainer.

`trainer.get_train_dataloader` is replaced. The Trainer counts the target tokens of a step over all
ranks and divides the loss of each microbatch by them, so microbatches may differ in samples and
tokens. It does not pass this number to models with `accepts_loss_kwargs = False`, such as Qwen-VL:
these get a `compute_loss_func` (`token_loss.py`). It resumes by the number of batches that it has
trained on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from transformers import TrainerCallback

from flowtrain.data.packed.agreement import Agreement
from flowtrain.data.packed.indexed import IndexedSource
from flowtrain.data.packed.sizes import FieldOrValues, Fields
from flowtrain.data.packed.source import LoadConfig, Oversize, parse_oversize
from flowtrain.integrations.arguments import unplanned, wrong
from flowtrain.integrations.token_loss import token_loss
from flowtrain.packing import PackingError, StepShape
from flowtrain_core.packing.interface import Objective

if TYPE_CHECKING:
    from transformers import Trainer

_IGNORED = -100
_log = logging.getLogger(__name__)


def pack_batches(
    trainer: Trainer,
    *,
    max_tokens: int,
    length: FieldOrValues = "input_ids",
    cost: FieldOrValues | None = None,
    objective: Objective = "lockstep",
    oversize: Oversize = "error",
) -> None:
    """Make a Trainer train on microbatches that cost the same on every rank.

        trainer = Trainer(model=model, args=args, train_dataset=dataset, data_collator=collate)
        pack_batches(trainer, max_tokens=8192, length="length", cost=cost)
        trainer.train()

    A step has as many samples as without packing: `per_device_train_batch_size` for each
    microbatch of each rank, in an order drawn from `data_seed` (or `seed`) and the epoch.
    `flowtrain_core.packing.schedule` decides which of them form a microbatch, the same on every
    rank. Microbatches differ in their number of samples, so use a collator that flattens them
    (`VlmCollator` for vision-language models, `DataCollatorWithFlattening` for text): padding would
    make them larger than `max_tokens`. The loss is the mean over the target tokens of the step, for
    any ranks and microbatches. A rank without a sample at the end of an epoch gets a sample again
    with its labels masked, unless `dataloader_drop_last`.

    The Trainer passes the number of these tokens to models that take `num_items_in_batch`. For a
    model that does not, such as Qwen-VL, and whose loss is that of a causal language model, this
    function sets `trainer.compute_loss_func` to the same loss, computed from the logits.

    Checkpoints are those of the Trainer. A resumed training continues in the middle of an epoch and
    does not read earlier samples.

    Args:
        trainer: A `transformers.Trainer` with a map-style `train_dataset`.
        max_tokens: Maximum tokens per microbatch.
        length: Tokens of a sample: a column (a number, or a row of tokens), a function of a
            sample, or one number per sample.
        cost: Cost of a sample, encoder and backbone, in the same forms; None takes its tokens.
        objective: Where ranks meet: "lockstep", in each microbatch (FSDP, and DDP with
            gradient_accumulation_steps=1); "accumulate", once per step (DDP).
        oversize: What to do with a sample above the cap: raise an error, or drop it and log the
            number of such samples.

    Raises:
        PackingError: The Trainer would not keep the loss exact, or would order samples differently.
            `train` raises it for a size that cannot be read, a sample above the cap, or a batch
            without labels.
    """
    _check(trainer)
    if not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None):
        trainer.compute_loss_func = token_loss(trainer)
    closing = _CloseAtEnd()
    trainer.remove_callback(_CloseAtEnd)  # That of an earlier call.
    trainer.add_callback(closing)
    make = partial(
        _loader,
        trainer,
        closing,
        fields=Fields(length=length, cost=cost),
        max_tokens=max_tokens,
        objective=objective,
        drop=parse_oversize(oversize),
    )
    trainer.get_train_dataloader = make  # type: ignore[method-assign]


def _check(trainer: Trainer) -> None:
    args = trainer.args
    dataset = trainer.train_dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise PackingError(
            f"train_dataset ({type(dataset).__name__}): the Trainer can resume only in a map-style "
            "data set; give it one, or use PackedLoader for a stream in a loop of your own"
        )
    in_order = {
        "dataloader_in_order": (
            not args.dataloader_in_order,
            "ranks must load in the planned order; leave it out",
        )
    }
    if (reason := unplanned(trainer) or wrong(trainer, in_order)) is not None:
        raise PackingError(reason)


class _CloseAtEnd(TrainerCallback):
    """Closes the connections over which ranks compare their plans when training ends."""

    def __init__(self) -> None:
        self.agreement: Agreement | None = None

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self.agreement is not None:
            self.agreement.close()


def _loader(
    trainer: Trainer,
    closing: _CloseAtEnd,
    *,
    fields: Fields,
    max_tokens: int,
    objective: Objective,
    drop: bool,
) -> DataLoader[Any]:
    from transformers.trainer_utils import seed_worker

    args = trainer.args
    dataset: Any = trainer.train_dataset
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")
    options: dict[str, Any] = {
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory,
        "persistent_workers": args.dataloader_persistent_workers,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
    }
    source = IndexedSource(
        dataset,
        fields,
        LoadConfig(
            shape=StepShape(
                ranks=args.world_size,
                max_tokens=max_tokens,
                microbatches=args.gradient_accumulation_steps,
                batch_size=args.per_device_train_batch_size,
                objective=objective,
                drop_last=args.dataloader_drop_last,
            ),
            rank=args.process_index,
            drop=drop,
            collate=collate,
            options=options,
        ),
        seed=args.seed if args.data_seed is None else args.data_seed,
        shuffle=args.train_sampling_strategy == "random",
    )
    if source.dropped and args.process_index == 0:
        _log.warning(
            "%d of %d samples are above max_tokens=%d and are dropped",
            len(source.dropped),
            len(dataset),
            max_tokens,
        )
    agreement = None
    if args.world_size > 1:
        settings = {**source.order, **source.plan}
        agreement = Agreement(None, timeout_s=args.ddp_timeout, settings=settings)
        closing.agreement = agreement
    # As in the Trainer's own loader, since torch's seeds are equal on all ranks.
    seeded = partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index)
    return DataLoader(
        _Samples(dataset),
        worker_init_fn=seeded,
        batch_sampler=_Epochs(source, agreement),
        collate_fn=partial(_collated, collate),
        **options,
    )


class _Filler(list[Any]):
    """Indices or samples of a filler, a microbatch with weight 0."""


class _Epochs(Sampler[list[int]]):
    """Yields the indices of this rank's microbatches in the current epoch."""

    def __init__(self, source: IndexedSource, agreement: Agreement | None) -> None:
        self._source = source
        self._agreement = agreement
        self._epoch = 0

    @property
    def batch_sampler(self) -> _Epochs:
        # The Trainer calls `set_epoch` of loader.batch_sampler.batch_sampler, where the first is
        # this sampler or the one that accelerate wraps around it to skip batches.
        return self

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        start = self._source.start(self._epoch)
        for microbatch, step in self._source.planned(start):
            if self._agreement is not None and microbatch.step == microbatch.index == 0:
                self._agreement.check(start, step)
            samples = list(microbatch.samples)
            yield _Filler(samples) if microbatch.filler else samples

    def __len__(self) -> int:
        return len(self._source)


class _Samples(Dataset[Any]):
    """A data set that is read by microbatches and marks the fillers."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if hasattr(self._dataset, "__getitems__"):
            samples = self._dataset.__getitems__(indices)
        else:
            samples = [self._dataset[index] for index in indices]
        return _Filler(samples) if isinstance(indices, _Filler) else samples

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)


def _collated(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    batch = collate(samples)
    if "labels" not in batch:
        raise PackingError(
            f"data_collator: its batch has {', '.join(batch)} but no labels, from which the "
            "Trainer counts the target tokens of a step; make the collator return `labels`"
        )
    if isinstance(samples, _Filler):
        for name in ("labels", "shift_labels"):
            if name in batch:
                # Not in place: a collator may return one tensor as input_ids and labels.
                batch[name] = torch.full_like(batch[name], _IGNORED)
    return batch
