"""Packed microbatches for the Hugging Face Trainer.

What is replaced is `trainer.get_train_dataloader`. Everything else is the Trainer's own: it counts
the target tokens of a step over all ranks and divides each microbatch's loss by them, so that
microbatches may differ in samples and tokens, and it finds its place again by the number of batches
that it has trained on.
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
from flowtrain.data.packed.sizes import Fields, Given
from flowtrain.data.packed.source import Loading, Oversize, leaves_out
from flowtrain.packing import PackingError, StepShape
from flowtrain_core.packing.interface import Objective

if TYPE_CHECKING:
    from transformers import Trainer

_IGNORED = -100
_log = logging.getLogger(__name__)


def pack_batches(
    trainer: Trainer,
    *,
    token_cap: int,
    length: Given = "input_ids",
    cost: Given | None = None,
    objective: Objective = "lockstep",
    oversize: Oversize = "error",
) -> None:
    """Let a trainer train on microbatches that cost the same on every rank.

        trainer = Trainer(model=model, args=args, train_dataset=dataset, data_collator=collate)
        pack_batches(trainer, token_cap=8192, length="length", cost=cost)
        trainer.train()

    A step has as many samples as before, `per_device_train_batch_size` for each microbatch of each
    rank, in an order drawn from `data_seed` (or `seed`) and the epoch; which of them meet is
    decided by `flowtrain_core.packing.schedule`, alike on every rank. Microbatches differ in
    samples, so let the collator flatten them (`DataCollatorWithFlattening`): one that pads makes
    them larger than `token_cap`. The loss is the mean over the target tokens of the step, whatever
    the ranks and microbatches are. A rank that is left without a sample, at the end of an epoch,
    gets one again with its labels masked, unless `dataloader_drop_last`.

    Checkpoints are the Trainer's, and resuming goes on in the middle of an epoch without reading
    what was trained on.

    Args:
        trainer: A `transformers.Trainer` with a map-style `train_dataset`.
        token_cap: Most tokens of a microbatch.
        length: Tokens of a sample: a column (a number, or a row of tokens), a function of a
            sample, or one number per sample.
        cost: What a sample costs, encoder and backbone, likewise; None takes its tokens.
        objective: Where ranks meet: "lockstep", in each microbatch (FSDP, and DDP with
            gradient_accumulation_steps=1); "free", once a step (DDP).
        oversize: What to do with a sample above the cap: an error, or leave it out and log how
            many.

    Raises:
        PackingError: The trainer would not keep the loss exact, or orders its samples otherwise;
            from `train`, a size that cannot be read, a sample above the cap, or a batch without
            labels.
    """
    _check(trainer)
    connected = _Connected()
    trainer.remove_callback(_Connected)  # That of an earlier call.
    trainer.add_callback(connected)
    make = partial(
        _loader,
        trainer,
        connected,
        fields=Fields(length=length, cost=cost),
        token_cap=token_cap,
        objective=objective,
        leave_out=leaves_out(oversize),
    )
    trainer.get_train_dataloader = make  # type: ignore[method-assign]


def _check(trainer: Trainer) -> None:
    args = trainer.args
    dataset = trainer.train_dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise PackingError(
            f"train_dataset ({type(dataset).__name__}): the Trainer can only go on in a map-style "
            "data set; give it one, or a stream to PackedLoader in a loop of your own"
        )
    wrong = {
        "train_sampling_strategy": args.train_sampling_strategy not in ("random", "sequential"),
        "auto_find_batch_size": args.auto_find_batch_size,
        "dataloader_in_order": not args.dataloader_in_order,
        "average_tokens_across_devices": (
            args.world_size > 1 and not args.average_tokens_across_devices
        ),
    }
    said = {
        "train_sampling_strategy": "samples are placed by cost; choose 'random' or 'sequential'",
        "auto_find_batch_size": "token_cap bounds the memory of a microbatch; leave it out",
        "dataloader_in_order": "ranks meet in the order that was planned; leave it out",
        "average_tokens_across_devices": "ranks have different numbers of targets; set it",
    }
    for name in (name for name, is_wrong in wrong.items() if is_wrong):
        raise PackingError(f"args.{name}={getattr(args, name)}: {said[name]}")
    if args.n_gpu > 1:
        raise PackingError(
            f"args.n_gpu={args.n_gpu}: DataParallel cuts batches up by samples; start one process "
            "for each device with torchrun"
        )
    if trainer.accelerator.num_processes != args.world_size or _model_parallel(trainer):
        raise PackingError(
            "accelerator: tensor and context parallel ranks would be given different samples; "
            "every process must be a data-parallel rank of its own"
        )
    if not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None):
        raise PackingError(_without_targets(trainer))


def _without_targets(trainer: Trainer) -> str:
    """Why the Trainer would not tell its model the target tokens of a step."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "accepts_loss_kwargs"):
        why = "accepts_loss_kwargs is False"
        way_out = (
            ", or set model.accepts_loss_kwargs = True before the Trainer is made, if forward "
            "hands its **kwargs on to a loss that divides by num_items_in_batch"
        )
    else:
        why, way_out = "forward takes no **kwargs", ""
    return (
        f"model ({type(model).__name__}): its {why}, so that the Trainer passes it no "
        "num_items_in_batch, the target tokens of the step, and would average the means of unequal "
        f"microbatches; give the Trainer a compute_loss_func{way_out}"
    )


def _model_parallel(trainer: Trainer) -> bool:
    config = getattr(trainer.accelerator, "parallelism_config", None)
    return config is not None and config.non_data_parallel_size > 1


class _Connected(TrainerCallback):
    """Closes the connections over which ranks compare their plans when training ends."""

    def __init__(self) -> None:
        self.agreement: Agreement | None = None

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self.agreement is not None:
            self.agreement.close()


def _loader(
    trainer: Trainer,
    connected: _Connected,
    *,
    fields: Fields,
    token_cap: int,
    objective: Objective,
    leave_out: bool,
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
        Loading(
            shape=StepShape(
                ranks=args.world_size,
                token_cap=token_cap,
                microbatches=args.gradient_accumulation_steps,
                batch_size=args.per_device_train_batch_size,
                objective=objective,
                drop_last=args.dataloader_drop_last,
            ),
            rank=args.process_index,
            leave_out=leave_out,
            collate=collate,
            options=options,
        ),
        seed=args.seed if args.data_seed is None else args.data_seed,
        shuffle=args.train_sampling_strategy == "random",
    )
    if source.left_out and args.process_index == 0:
        _log.warning(
            "%d of %d samples are above token_cap=%d and are left out",
            len(source.left_out),
            len(dataset),
            token_cap,
        )
    agreement = None
    if args.world_size > 1:
        made_with = {**source.order, **source.plan}
        agreement = Agreement(None, timeout_s=args.ddp_timeout, made_with=made_with)
        connected.agreement = agreement
    # As the Trainer seeds its own workers: torch's seeds are the same on every rank.
    seeded = partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index)
    return DataLoader(
        _Samples(dataset),
        worker_init_fn=seeded,
        batch_sampler=_Epochs(source, agreement),
        collate_fn=partial(_collated, collate),
        **options,
    )


class _Filler(list[Any]):
    """Indices or samples of a microbatch that counts for nothing."""


class _Epochs(Sampler[list[int]]):
    """Indices of this rank's microbatches, of the epoch that was set last."""

    def __init__(self, source: IndexedSource, agreement: Agreement | None) -> None:
        self._source = source
        self._agreement = agreement
        self._epoch = 0

    @property
    def batch_sampler(self) -> _Epochs:
        # Where the Trainer looks for what to call `set_epoch` of: what it finds behind the loader's
        # batch sampler, which is this one, or what accelerate wraps around it to skip batches.
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
    """A data set that is read by microbatches, and says which are fillers."""

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
            f"data_collator: its batch has {', '.join(batch)} and no labels, by which the Trainer "
            "counts the target tokens of a step; without them it would average the means of "
            "unequal microbatches; let the collator name them so"
        )
    if isinstance(samples, _Filler):
        for name in ("labels", "shift_labels"):
            if name in batch:
                # Not in place: a collator may give its input_ids as labels, too.
                batch[name] = torch.full_like(batch[name], _IGNORED)
    return batch
