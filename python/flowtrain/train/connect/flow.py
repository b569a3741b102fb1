"""The steps of a training loop whose images are encoded by ranks of the flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.schedule import Action
from flowtrain.train.connect.model import LoopModel
from flowtrain.train.connect.optimizer import (
    EncoderGroups,
    check_state,
    group_options,
    set_group_options,
)
from flowtrain.train.connect.part import Batch, FlowError
from flowtrain.train.connect.rank import LoopRank
from flowtrain.train.connect.run import Samples, run_of
from flowtrain.train.ranks.evaluations import Evaluation
from flowtrain.train.state.checkpoint_files import remove_after, valid_checkpoints
from flowtrain.train.state.final import write_model


class Flow:
    """The steps of a loop, in the block of `connect`.

    Args:
        sections: Sections of the run, without data and training.
        loop: The loop's ranks, and the model without its tower.
        optimizer: Its optimizer.
        groups: Those of the optimizer's groups that had the encoder's parameters; None if it does
            not train.
        resume: Go on from the last checkpoint.

    Attributes:
        ends_with_optimizer: Whether a step of the optimizer ends that of the flow, for trainers
            that step it themselves; otherwise it is refused.
    """

    def __init__(
        self,
        sections: dict[str, Any],
        loop: LoopModel,
        optimizer: torch.optim.Optimizer,
        groups: EncoderGroups | None,
        *,
        resume: bool,
    ) -> None:
        self.ends_with_optimizer = False
        self._sections = sections
        self._loop = loop
        self._optimizer = optimizer
        self._groups = groups
        self._resume = resume
        self._resume_at: int | None = None
        self._rank: LoopRank | None = None
        self._actions: Iterator[Action] = iter(())
        self._next: Action | None = None
        self._computing = ExitStack()
        self._is_own = False
        self._done = 0
        self._has_stepped = False
        self._hook = optimizer.register_step_pre_hook(self._check_step)

    def steps(
        self,
        dataset: Samples,
        *,
        samples: int,
        max_tokens: int,
        steps: int | None = None,
        held_out: Samples | None = None,
        evaluate_every: int = 0,
        loss: Callable[[Batch], torch.Tensor] | None = None,
        seed: int = 0,
    ) -> Iterator[Step]:
        """The steps of the loop; the first waits for the encoder ranks.

        Args:
            dataset: A file or folder of samples, in its order; fields of section `data` of a run,
                or the section itself; a `VlmSamples`, or a list of records, which is written to the
                job's folder.
            samples: Samples of a step.
            max_tokens: Maximum tokens of a microbatch, and so of a sample.
            steps: Number of steps; None for those of one epoch, of which the last may have samples
                of the next. Samples that are dropped are replaced by those that follow.
            held_out: Samples on which `step` evaluates the model, read as those of the training; in
                the forms of `dataset`, but from one source. None evaluates nothing.
            evaluate_every: Steps between evaluations; the last step is always evaluated.
            loss: Mean loss over the target tokens of a microbatch of an evaluation, without
                gradients; by default `model(**batch).loss`.
            seed: Seed of the order with `data.shuffle`, and of the encoder's dropout.

        Raises:
            FlowError: The flow has had its steps, or a step was not ended by `step`.
            ConfigError, DataError: The job folder or the samples cannot be used.
            JobFailed: An encoder rank has ended or does not answer.
        """
        if self._rank is not None:
            raise FlowError("flow.steps: this flow has had its steps; connect again")
        sections = self._sections
        train = {"global_batch": samples, "microbatch_tokens": max_tokens, "seed": seed}
        with self._own_steps():  # torch steps an optimizer whose state it loads.
            self._rank = LoopRank(
                partial(
                    self._run,
                    {**sections, "train": train},
                    dataset,
                    steps=steps,
                    held_out=held_out,
                    evaluate_every=evaluate_every,
                ),
                "colocated" if "ranks" in sections["flow"] else "backbone",
                self._loop,
                self._optimizer,
                resume=self._resume,
                rate=None if self._groups is None else self._rate,
            )
        self._rank.part.loss = loss
        self._done = self._rank.first
        self._actions = self._rank.actions()
        self._advance()
        while self._until("forward", "norm") is not None:
            step = self._step
            yield Step(self, step, *self._rank.size_of(step))
            if self._next is not None and self._step == step:
                raise FlowError(f"flow.steps: step {step} was not ended; call flow.step() in it")

    def norm(self) -> float:
        """Agree with the encoder on a step whose microbatches are done; `step` does it as well.

        Returns:
            Gradient norm over all parameters, before clipping.

        Raises:
            FlowError: No step has begun, or microbatches of it are left.
            NonFiniteError: Loss or gradient is not finite.
            JobFailed: An encoder rank has ended or does not answer.
        """
        action = self._next
        if action is not None and action.kind == "backward" and action.last:
            # The loop has all microbatches, and has not asked whether there is another.
            self._computing.close()
            self._advance()
        elif action is None and self._rank is not None:
            raise FlowError(f"flow.step: all {self._done} steps are done; leave the loop")
        elif action is None or action.kind not in ("norm", "apply"):
            raise FlowError("flow.step: take all microbatches of a step first, and then call it")
        self._until("apply")
        assert self._rank is not None
        return self._rank.update.grad_norm

    def step(self) -> float:
        """End a step: agree with the encoder, step both optimizers, and drop the gradients.

        Where one is due, an evaluation and a checkpoint follow.

        Returns and raises what `norm` does; `PlanError` if a held-out sample cannot be used.
        """
        norm, step = self.norm(), self._step
        with self._own_steps():
            while self._next is not None and self._step == step:
                self._advance()
        if not self._has_stepped:
            check_state(self._optimizer)
            self._has_stepped = True
        self._done = step + 1
        return norm

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation after the last step, the same on all ranks; None without one.

        Its `loss` is the mean over the target tokens of all held-out samples.
        """
        found = None if self._rank is None else self._rank.evaluation
        return found[1] if found is not None and found[0] + 1 == self._done else None

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the whole model, after a step that was saved; of several ranks the first writes.

        Raises:
            FlowError: The last step was not saved, or the model has adapters.
        """
        if self.has_adapters:
            raise FlowError(
                "flow.save_pretrained: the model has adapters, and nothing else has changed; save "
                "them with its own save_pretrained"
            )
        found = self._saved("save_pretrained")
        if self._loop.rank == 0:
            assert self._rank is not None
            write_model(self._rank.config, found, Path(folder))

    def state_dict(self) -> dict[str, Any]:
        """What a loop that saves its own state saves beside it, after a step that was saved.

        It says which checkpoint of the job belongs to that state, and has the options of the
        optimizer's groups, such as learning rates, which schedulers go on from.

        Raises:
            FlowError: The last step was not saved.
        """
        self._saved("state_dict")
        return {"steps": self._done, "groups": group_options(self._optimizer)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the checkpoint of a state, before the steps; later ones are removed then.

        The optimizer's groups have their options at once. `steps` loads model and optimizer, and
        raises `CheckpointError` if the job has the checkpoint no more.

        Args:
            state: What `state_dict` has returned; without `groups`, their options stay.

        Raises:
            ConfigError: The optimizer has another number of groups.
            FlowError: The steps have begun.
        """
        if self._rank is not None:
            raise FlowError("flow.load_state_dict: the steps have begun; call it before flow.steps")
        if "groups" in state:
            set_group_options(self._optimizer, state["groups"])
        self._resume, self._resume_at = True, int(state["steps"])

    @property
    def has_adapters(self) -> bool:
        """Whether the model has adapters of PEFT."""
        return self._loop.has_adapters

    def failure(self) -> str | None:
        """Why the job has failed, if it has; waits shortly, as deaths are seen soon after."""
        return None if self._rank is None else self._rank.failure()

    def close(self, error: BaseException | None) -> None:
        """Close the job; `connect` calls it."""
        self._hook.remove()
        if self._rank is not None:
            self._rank.close(error)

    def batches(self, step: int) -> Iterator[Batch]:
        """The microbatches of a step."""
        assert self._rank is not None
        while (action := self._until("forward", "norm")) is not None:
            if action.kind == "norm" or action.step != step:
                return
            self._advance()  # Makes the batch.
            batch, backward = self._rank.part.batch, self._next
            assert backward is not None
            batch.ends_step = backward.last
            with self._computing:
                self._computing.enter_context(self._rank.computes(backward))
                yield batch
            if self._next is not backward:
                return  # The step has been ended within this microbatch.
            self._advance()  # Takes the gradient of its image rows.

    def _saved(self, method: str) -> Path:
        """The checkpoint after the last step."""
        run = Path(self._sections["run"])
        valid = {} if self._rank is None else valid_checkpoints(run)
        if self._done not in valid:
            way_out = (
                f"; `flowtrain export {run}` writes the model of the last one" if valid else ""
            )
            raise FlowError(
                f"flow.{method}: {run} has no checkpoint after {self._done} steps, with what the "
                "encoder has learned; one is written after the last step, and after each "
                f"save_every{way_out}"
            )
        return valid[self._done]

    @property
    def _step(self) -> int:
        assert self._next is not None
        return self._next.step

    def _until(self, *kinds: str) -> Action | None:
        """Execute actions until the next is of these kinds."""
        while self._next is not None and self._next.kind not in kinds:
            self._advance()
        return self._next

    def _advance(self) -> None:
        """Execute an action."""
        # The passes of a colocated encoder are none of the loop's autocast.
        with torch.autocast(self._loop.device.type, enabled=False):
            self._next = next(self._actions, None)

    @contextmanager
    def _own_steps(self) -> Iterator[None]:
        """Within the block, steps of the optimizer are the flow's."""
        self._is_own = True
        try:
            yield
        finally:
            self._is_own = False

    def _check_step(self, *_: Any) -> None:
        """Refuse a step of the optimizer that is not the flow's; a gradient scaler calls it too.

        Raises:
            FlowError: It is another.
        """
        if self._is_own:
            return
        if self.ends_with_optimizer:
            self.step()  # The optimizer goes on without gradients, and so does nothing.
        else:
            raise FlowError(
                "optimizer.step: the loop has called it, and the encoder would not step; call "
                "flow.step() in its place; a torch.amp.GradScaler calls it too: train without "
                "one, in bfloat16 or float32"
            )

    def _run(self, sections: dict[str, Any], dataset: Samples, **options: Any) -> RunConfig:
        """The run, whose folder has no later checkpoint than that to go on from."""
        if self._resume_at is not None:
            remove_after(Path(sections["run"]), self._resume_at)
        return run_of(sections, dataset, **options)

    def _rate(self) -> float:
        assert self._groups is not None
        return self._groups.rate(self._optimizer)


class Step:
    """A step of a loop: its microbatches of this rank, to be iterated once.

    Args:
        flow: The flow.
        number: The step, from 0.
        microbatches: Number of its microbatches, the length of this.
        num_targets: Its target tokens, over all ranks.
    """

    def __init__(self, flow: Flow, number: int, microbatches: int, num_targets: int) -> None:
        self.number = number
        self.num_targets = num_targets
        self._flow = flow
        self._microbatches = microbatches

    def __len__(self) -> int:
        return self._microbatches

    def __iter__(self) -> Iterator[Batch]:
        return self._flow.batches(self.number)
