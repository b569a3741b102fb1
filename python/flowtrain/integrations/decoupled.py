"""Replaced methods of a Trainer whose encoder is in ranks of its own.

The Trainer keeps its loop. Its batches are empty: where it computes one, the microbatches of the
flow are computed in its place, each by the Trainer's own `training_step`. Where it clips the
gradients, both modules agree on their joint norm, and where it steps its optimizer, both step.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import get_last_checkpoint, speed_metrics

from flowtrain.config.data import DataConfig
from flowtrain.train.connect.entry import connect
from flowtrain.train.connect.flow import Flow, Step
from flowtrain.train.connect.part import Batch, FlowError
from flowtrain.train.connect.run import Samples, epoch_draws
from flowtrain.train.state.checkpoint_files import valid_checkpoints

if TYPE_CHECKING:
    from transformers import Trainer
    from transformers.trainer_callback import TrainerState

_IGNORED = -100
_ALL = 1 << 30
_log = logging.getLogger(__name__)


class Decoupled(TrainerCallback):
    """Replacements of methods of a Trainer.

    Args:
        trainer: The Trainer.
        job: Folder of the job.
        data: The samples.
        held_out: Those of evaluations; None without any.
        max_tokens: Maximum tokens of a microbatch.
        options: Other arguments of `connect`.
    """

    def __init__(
        self,
        trainer: Trainer,
        job: Path,
        data: DataConfig,
        held_out: Samples | None,
        max_tokens: int,
        options: dict[str, Any],
    ) -> None:
        args = trainer.args
        self._trainer = trainer
        self._job = job
        self._data = data
        self._held_out = held_out
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
        self._evaluate = partial(own.evaluate, trainer)
        self._flow: Flow | None = None
        self._steps: Iterator[Step] = iter(())
        self._step: _Step | None = None

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
            save_every=self._every(args.save_strategy, args.save_steps),
            # With the last alone, the job would have none of the step that a Trainer resumes from
            # whose own was not written any more.
            keep=_ALL if args.save_total_limit is None else max(2, args.save_total_limit),
            **self._options,
        ) as flow:
            flow.ends_with_optimizer = True
            if done is not None:
                flow.load_state_dict({"steps": done})
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
            held_out=self._held_out,
            evaluate_every=self._every(args.eval_strategy, args.eval_steps),
            loss=self._held_out_loss,
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
        losses = []
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
                losses.append(self._training_step(model, batch, targets))
        if step.is_over:
            step.end()
            self._step = None
        # From these the Trainer counts tokens and FLOPs.
        inputs["input_ids"] = torch.cat(tokens, dim=1)
        return torch.stack(losses).sum() if losses else torch.zeros((), device=device)

    def evaluate(
        self, eval_dataset: Any = None, *given: Any, metric_key_prefix: str = "eval", **options: Any
    ) -> dict[str, float]:
        """`Trainer.evaluate`: the evaluation that the flow has made after the last step."""
        trainer = self._trainer
        if self._flow is None:
            options["metric_key_prefix"] = metric_key_prefix
            whole: dict[str, float] = self._evaluate(eval_dataset, *given, **options)
            return whole
        found = self._flow.evaluation
        if found is None or eval_dataset is not None:
            raise FlowError(
                "trainer.evaluate: the model has no vision tower any more, and the flow evaluates "
                "the held-out samples after the steps that eval_strategy and eval_steps say, and "
                "after the last one; set them, or evaluate what trainer.save_model has written"
            )
        metrics = {
            f"{metric_key_prefix}_loss": found.loss,
            **speed_metrics(
                metric_key_prefix, time.time() - found.seconds, num_samples=found.samples
            ),
        }
        model: Any = trainer.model
        model.eval()  # By this TRL tells logs of evaluations; training sets it back.
        trainer.log(metrics)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, metrics
        )
        return metrics

    def _held_out_loss(self, batch: Batch) -> torch.Tensor:
        """The mean loss of a microbatch, as the Trainer computes that of its training."""
        trainer: Any = self._trainer
        num_targets = (batch["labels"][:, 1:] != _IGNORED).sum()
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=num_targets)
        # It is meant to be averaged over the ranks.
        return torch.as_tensor(loss) / trainer.args.world_size

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

    def _next_step(self) -> _Step | None:
        step = next(self._steps, None)
        return None if step is None else _Step(step)

    def _every(self, strategy: str, steps: float) -> int:
        """Steps between checkpoints or evaluations.

        Args:
            strategy: `no`, `epoch` or `steps`.
            steps: Their number, or below 1 their share of all steps.
        """
        args = self._trainer.args
        if strategy == "no":
            return 0
        if strategy == "epoch":
            return self._epoch_steps
        if steps >= 1:
            return int(steps)
        epochs = math.ceil(args.num_train_epochs * self._epoch_steps)
        return math.ceil((args.max_steps if args.max_steps > 0 else epochs) * steps)

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


class _Step:
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
