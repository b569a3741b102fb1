"""The Hugging Face Trainer with an encoder in ranks of its own.

The Trainer keeps its loop. Its batches are empty: where it computes one, the microbatches of the
flow are computed in its place, each by the Trainer's own `training_step`. Where it clips the
gradients, both modules agree on their joint norm, and where it steps its optimizer, both step.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import get_last_checkpoint

from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import DataConfig
from flowtrain.config.tree import build
from flowtrain.data import VlmSamples
from flowtrain.integrations.arguments import unplanned, wrong
from flowtrain.integrations.token_loss import token_loss
from flowtrain.train.connect.flow import Flow, FlowError, Step, connect
from flowtrain.train.connect.part import Batch
from flowtrain.train.connect.run import Samples, epoch_draws, fields_of
from flowtrain.train.state.checkpoint import valid_checkpoints

if TYPE_CHECKING:
    from transformers import Trainer
    from transformers.trainer_callback import TrainerState

_IGNORED = -100
_log = logging.getLogger(__name__)
_ALL = 1 << 30
_REPLACED = (
    "train",
    "training_step",
    "save_model",
    "get_train_dataloader",
    "get_eval_dataloader",
    "get_test_dataloader",
)


def decouple(
    trainer: Trainer,
    job: Path | str,
    *,
    max_tokens: int,
    dataset: Samples | None = None,
    mode: Literal["strict", "frozen"] = "strict",
    **options: Any,
) -> None:
    """Make a Trainer train with an encoder that runs apart, in ranks of its own.

        samples = VlmSamples(folder, "train.jsonl")
        trainer = Trainer(model, args, train_dataset=samples, data_collator=VlmCollator(folder))
        decouple(trainer, "job", max_tokens=8192)
        trainer.train()
        trainer.save_model("out")

    The encoder ranks are other processes of this host, `flowtrain encoder --job job`, as for
    `flowtrain.connect`. The Trainer keeps its arguments, optimizer, schedule, callbacks, logs and
    checkpoints, and resumes from these. Its `train` takes the vision tower out of the model.

    A step has as many samples as without this: `per_device_train_batch_size` for each of
    `gradient_accumulation_steps` batches of each rank. `max_tokens` decides how many microbatches
    they are packed into. The loss is the mean over the target tokens of the step. Epochs follow
    each other without a gap: no step is shorter than the others.

    `save_model` writes the whole model after the last step. Checkpoints of the Trainer have the
    model without its tower, and resume together with those of the job, which have all weights.

    Args:
        trainer: A `transformers.Trainer` or TRL's `SFTTrainer`, before it trains.
        job: Folder of the job.
        max_tokens: Maximum tokens of a microbatch, and so of a sample.
        dataset: The samples, as for `Flow.steps`, in the order that `train_sampling_strategy`
            says; None takes those of `train_dataset`, if that is a `VlmSamples`.
        mode: `strict` trains the encoder, `frozen` does not.
        **options: Further arguments of `flowtrain.connect`, such as `encoder_ranks`.

    Raises:
        ConfigError: An argument of the Trainer, or its train_dataset, cannot be used; `train`
            raises what `flowtrain.connect` and `Flow.steps` do.
        PackingError: The loss of the model is no mean over target tokens.
    """
    if owned := sorted(options.keys() & {"clip_norm", "save_every", "keep", "resume"}):
        raise ConfigError(f"decouple: {owned[0]} is for the arguments of the Trainer to say")
    reason = unplanned(trainer) or wrong(trainer, _rules(trainer))
    if reason is None and getattr(trainer, "model_init", None) is not None:
        reason = "model_init: the tower can be taken out of one model alone; give the Trainer that"
    if reason is None and (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        reason = (
            "accelerator: DeepSpeed and FSDP are not supported in a Trainer; use DDP, or "
            "flowtrain.connect in a loop of your own, which takes FSDP2"
        )
    if reason is not None:
        raise ConfigError(reason)
    options |= {"mode": mode}
    decoupled = _Decoupled(trainer, Path(job), _data(trainer, dataset), max_tokens, options)
    _normalize_loss(trainer)
    trainer.remove_callback(_Decoupled)  # That of an earlier call.
    trainer.add_callback(decoupled)
    for name in _REPLACED:
        setattr(trainer, name, getattr(decoupled, name))


class _Decoupled(TrainerCallback):
    """What takes the place of methods of a Trainer.

    Args:
        trainer: The Trainer.
        job: Folder of the job.
        data: The samples.
        max_tokens: Maximum tokens of a microbatch.
        options: Other arguments of `connect`.
    """

    def __init__(
        self,
        trainer: Trainer,
        job: Path,
        data: DataConfig,
        max_tokens: int,
        options: dict[str, Any],
    ) -> None:
        args = trainer.args
        self._trainer = trainer
        self._job = job
        self._data = data
        self._max_tokens = max_tokens
        self._options = options
        self._seed = args.seed if args.data_seed is None else args.data_seed
        self._calls = args.gradient_accumulation_steps
        self._samples = args.per_device_train_batch_size * self._calls * args.world_size
        self._draws = epoch_draws(data, seed=self._seed)
        full = self._draws // self._samples
        rest = self._draws % self._samples > 0 and not args.dataloader_drop_last
        self._epoch_steps = max(1, full + rest)
        # Those of the class, also after an earlier call.
        own = type(trainer)
        self._train = partial(own.train, trainer)
        self._training_step = partial(own.training_step, trainer)
        self._save_model = partial(own.save_model, trainer)
        self._flow: Flow | None = None
        self._steps: Iterator[Step] = iter(())
        self._step: _CurrentStep | None = None

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *given: Any, **options: Any
    ) -> Any:
        """`Trainer.train`, connected to the encoder ranks."""
        trainer, args = self._trainer, self._trainer.args
        done = _resumed(resume_from_checkpoint, args.output_dir)
        with connect(
            self._job,
            trainer.model,
            trainer.create_optimizer(),
            clip_norm=args.max_grad_norm if args.max_grad_norm > 0 else None,
            compute_dtype=torch.bfloat16 if args.bf16 else None,
            save_every=self._save_every(),
            # With the last alone, the job would have none of the step that a Trainer resumes from
            # whose own was not written any more.
            keep=_ALL if args.save_total_limit is None else max(2, args.save_total_limit),
            resume=done is not None,
            **self._options,
        ) as flow:
            flow.ends_with_optimizer = True
            flow.resume_at = done
            self._flow = flow
            with self._joint_norm(flow):
                return self._train(resume_from_checkpoint, *given, **options)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        assert self._flow is not None
        self._steps = self._flow.steps(
            self._data,
            samples=self._samples,
            max_tokens=self._max_tokens,
            steps=state.max_steps,
            seed=self._seed,
        )
        self._step = self._next_step()

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Say that a checkpoint which a callback asked for has no counterpart."""
        if state.global_step not in valid_checkpoints(self._job) and args.process_index == 0:
            _log.warning(
                "checkpoint-%d cannot be resumed: the job has no checkpoint of this step, since "
                "save_strategy and save_steps do not ask for one",
                state.global_step,
            )

    def training_step(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """Compute the microbatches that take the place of a batch of the Trainer.

        The microbatches of a step are divided evenly among its batches; there may be none for one.
        """
        trainer = self._trainer
        step = self._step or self._next_step()
        if step is None:
            raise FlowError("trainer.training_step: all steps of the flow have been taken")
        self._step = step
        device = trainer.args.device
        total = torch.zeros((), device=device)
        tokens = [torch.empty((1, 0), dtype=torch.long, device=device)]
        targets = torch.tensor(max(1, step.num_targets), device=device)
        trainer.current_gradient_accumulation_steps = step.microbatches
        share = step.share(self._calls)
        for number in range(share):
            batch = step.next()
            if not batch.weight:  # Its label is there for the mean of the model alone.
                batch["labels"] = torch.full_like(batch["labels"], _IGNORED)
            tokens.append(batch["input_ids"])
            is_last = number == share - 1
            with nullcontext() if is_last else trainer.accelerator.no_sync(model):
                total += self._training_step(model, batch, targets)
        if step.is_over:
            step.end()
            self._step = None
        # From these the Trainer counts tokens and FLOPs.
        inputs["input_ids"] = torch.cat(tokens, dim=1)
        return total

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """`Trainer.save_model`, of the whole model."""
        if _internal_call or self._flow is None or self._flow.has_adapters:
            self._save_model(output_dir, _internal_call)
            return
        folder = Path(output_dir or self._trainer.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        # The folder may have checkpoints, too.
        whole = folder / "whole"
        self._flow.save_pretrained(whole)
        if self._trainer.args.should_save:
            torch.save(self._trainer.args, whole / TRAINING_ARGS_NAME)
            for file in whole.iterdir():
                file.replace(folder / file.name)
            shutil.rmtree(whole)

    def get_train_dataloader(self) -> DataLoader[None]:
        """Empty batches, as many as the Trainer takes in an epoch."""
        return DataLoader(
            _NoSamples(self._draws),
            batch_sampler=[[0]] * (self._epoch_steps * self._calls),
            collate_fn=_nothing,
        )

    def get_eval_dataloader(self, *given: Any, **options: Any) -> DataLoader[Any]:
        """`Trainer.get_eval_dataloader`, while the model has its tower."""
        return self._of_whole_model("get_eval_dataloader", given, options)

    def get_test_dataloader(self, *given: Any, **options: Any) -> DataLoader[Any]:
        """`Trainer.get_test_dataloader`, while the model has its tower."""
        return self._of_whole_model("get_test_dataloader", given, options)

    def _of_whole_model(self, name: str, given: Any, options: Any) -> DataLoader[Any]:
        if self._flow is not None:
            raise FlowError(
                f"trainer.{name}: the model has no vision tower any more; save it by "
                "trainer.save_model, and evaluate what that wrote"
            )
        loader: DataLoader[Any] = getattr(type(self._trainer), name)(
            self._trainer, *given, **options
        )
        return loader

    def _next_step(self) -> _CurrentStep | None:
        step = next(self._steps, None)
        return None if step is None else _CurrentStep(step)

    def _save_every(self) -> int:
        args = self._trainer.args
        if args.save_strategy == "no":
            return 0
        if args.save_strategy == "epoch":
            return self._epoch_steps
        if args.save_steps >= 1:
            return int(args.save_steps)
        steps = math.ceil(args.num_train_epochs * self._epoch_steps)
        return math.ceil((args.max_steps if args.max_steps > 0 else steps) * args.save_steps)

    @contextmanager
    def _joint_norm(self, flow: Flow) -> Iterator[None]:
        """Within the block, the Trainer's norm is that over both modules.

        The gradients are clipped before the optimizers step.
        """
        accelerator = self._trainer.accelerator
        accelerator.clip_grad_norm_ = lambda *_, **__: torch.tensor(flow.norm())
        try:
            yield
        finally:
            del accelerator.clip_grad_norm_


class _CurrentStep:
    """A step whose microbatches are being taken.

    Args:
        step: The step.

    Attributes:
        microbatches: Number of its microbatches.
        num_targets: Its target tokens, over all ranks.
        is_over: Whether all calls of the Trainer for it were made.
    """

    def __init__(self, step: Step) -> None:
        self.microbatches = len(step)
        self.num_targets = step.num_targets
        self.is_over = False
        self._batches = iter(step)
        self._call = 0

    def share(self, calls: int) -> int:
        """Number of microbatches of the next of so many calls."""
        first = self._call * self.microbatches // calls
        self._call += 1
        self.is_over = self._call == calls
        return self._call * self.microbatches // calls - first

    def next(self) -> Batch:
        """The next microbatch; the gradient of the image rows of the one before has been taken."""
        return next(self._batches)

    def end(self) -> None:
        """Take the gradient of the image rows of the last microbatch."""
        assert next(self._batches, None) is None


class _NoSamples(Dataset[None]):
    """Stands for the samples of an epoch, which the flow reads."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, _: int) -> None:
        return None


def _nothing(_: list[None]) -> dict[str, Any]:
    return {}


def _rules(trainer: Trainer) -> dict[str, tuple[bool, str]]:
    """Arguments that cannot be used, and why."""
    args = trainer.args
    whole = "the Trainer has no whole model while it trains"
    return {
        "fp16": (args.fp16, "losses cannot be scaled for both modules; use bf16"),
        "eval_strategy": (args.eval_strategy != "no", f"{whole}; evaluate the saved model"),
        "eval_on_start": (args.eval_on_start, f"{whole}; evaluate the saved model"),
        "push_to_hub": (args.push_to_hub, f"{whole}; push what save_model has written"),
        "save_only_model": (args.save_only_model, f"{whole}; leave it out, and call save_model"),
        "enable_jit_checkpoint": (
            args.enable_jit_checkpoint,
            "the job has checkpoints of planned steps alone; leave it out",
        ),
        "ignore_data_skip": (args.ignore_data_skip, "the flow goes on where it was; leave it out"),
    }


def _data(trainer: Trainer, dataset: Samples | None) -> DataConfig:
    """The samples, in the order that the Trainer says."""
    given = trainer.train_dataset
    if dataset is None and isinstance(given, VlmSamples):
        dataset = given.data
    if dataset is None:
        raise ConfigError(
            f"train_dataset ({type(given).__name__}): encoder ranks cannot read it; give "
            "decouple(..., dataset=) the file or folder of the samples or their section `data`, or "
            "make it a flowtrain.data.VlmSamples"
        )
    shuffle = trainer.args.train_sampling_strategy == "random"
    return build(DataConfig, fields_of(dataset) | {"shuffle": shuffle}, source="data")


def _normalize_loss(trainer: Trainer) -> None:
    """Have the losses of microbatches divided by the target tokens of their step."""
    from transformers import Trainer

    if trainer.compute_loss_func is not None:
        return
    owner = next(kind for kind in type(trainer).__mro__ if "compute_loss" in vars(kind))
    if owner is Trainer:
        if not trainer.model_accepts_loss_kwargs:
            trainer.compute_loss_func = token_loss(trainer)
    elif owner.__module__ == "trl.trainer.sft_trainer":
        trainer.loss_is_scaled_for_ga = True
    elif not trainer.loss_is_scaled_for_ga:
        raise ConfigError(
            f"{owner.__name__}.compute_loss: its loss has to be a sum over target tokens, divided "
            "by num_items_in_batch; if it is, set trainer.loss_is_scaled_for_ga = True"
        )


def _resumed(resume_from_checkpoint: str | bool | None, output_dir: str | None) -> int | None:
    """Steps of the checkpoint from which a Trainer resumes; None if it does not."""
    from transformers import TrainerState

    if not resume_from_checkpoint:
        return None
    folder = resume_from_checkpoint
    if folder is True:
        folder = get_last_checkpoint(output_dir)
    if not isinstance(folder, str):
        return None  # The Trainer says why.
    path = Path(folder) / TRAINER_STATE_NAME
    return int(TrainerState.load_from_json(str(path)).global_step)
