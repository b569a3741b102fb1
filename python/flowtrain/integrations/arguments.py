"""Settings of a Trainer under which it would not train as FlowTrain plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Trainer


def unplanned(trainer: Trainer) -> str | None:
    """Why a Trainer would not train the planned microbatches with an exact loss; None if it does.

    Args:
        trainer: The Trainer.
    """
    args = trainer.args
    found = wrong(
        trainer,
        {
            "train_sampling_strategy": (
                args.train_sampling_strategy not in ("random", "sequential"),
                "samples are placed by cost; choose 'random' or 'sequential'",
            ),
            "auto_find_batch_size": (
                args.auto_find_batch_size,
                "max_tokens bounds the memory of a microbatch; leave it out",
            ),
            "average_tokens_across_devices": (
                args.world_size > 1 and not args.average_tokens_across_devices,
                "ranks have different numbers of targets; set it",
            ),
            "n_gpu": (
                args.n_gpu > 1,
                "DataParallel divides batches by samples; start one process for each device with "
                "torchrun",
            ),
        },
    )
    if found is None and (
        trainer.accelerator.num_processes != args.world_size or _model_parallel(trainer)
    ):
        return (
            "accelerator: tensor and context parallel ranks would get different samples; make "
            "every process a data-parallel rank"
        )
    return found


def wrong(trainer: Trainer, rules: Mapping[str, tuple[bool, str]]) -> str | None:
    """The first of some arguments of a Trainer that is wrong, and why; None without one.

    Args:
        trainer: The Trainer.
        rules: For each argument, whether it is wrong, and why and the way out.
    """
    return next(_messages(trainer, rules), None)


def _messages(trainer: Trainer, rules: Mapping[str, tuple[bool, str]]) -> Iterator[str]:
    for name, (is_wrong, reason) in rules.items():
        if is_wrong:
            value = getattr(trainer.args, name)
            yield f"args.{name}={getattr(value, 'value', value)}: {reason}"


def _model_parallel(trainer: Trainer) -> bool:
    config = getattr(trainer.accelerator, "parallelism_config", None)
    return config is not None and config.non_data_parallel_size > 1
