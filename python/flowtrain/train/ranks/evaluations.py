"""Evaluations: a rank's part in the loss of the held-out samples, and in answers to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from flowtrain.schedule import Action, Role, evaluation
from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.planning.planner import Planner
from flowtrain.train.planning.plans import PlanError
from flowtrain.train.ranks.backbone import BackbonePart, StepSums
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.step import inference
from flowtrain.train.state.logs import Log


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Result of an evaluation, over all ranks.

    Attributes:
        loss: Mean over the target tokens; not a number if there are none.
        num_targets: Target tokens, without those of skipped samples.
        samples: Evaluated samples.
        skipped: Of these, samples with a skipped image.
        dropped: Samples that were left out, as they exceed a microbatch.
        truncated: Samples that were truncated to fit into one.
        seconds: Time that it took.
        answers: Generated answers, token ids by sample; only on the first rank with the backbone.
    """

    loss: float
    num_targets: int
    samples: int
    skipped: int
    dropped: int
    truncated: int
    seconds: float
    answers: dict[int, list[int]]

    def write(self, log: Log, step: int) -> None:
        """Append a line to `eval.jsonl`.

        Args:
            log: The log.
            step: Step after which the model was evaluated.
        """
        values = {
            "step": step,
            "loss": self.loss,
            "target_tokens": self.num_targets,
            "samples": self.samples,
            "skipped_samples": self.skipped,
            "dropped_samples": self.dropped,
            "truncated_samples": self.truncated,
        }
        log.append_values(values)


class Evaluations:
    """Evaluates the model after the steps that the configuration names.

    All ranks execute the batches of an evaluation one after another, as they execute steps, but
    without backward and update.

    Args:
        context: Connections and services of this rank.
        role: This rank, as schedules see it.
        backbone: The backbone's part, if this rank holds the backbone.
        execute: Executes an action.
        planner: Told of each batch; None except on the first rank with the backbone.

    Attributes:
        is_abandoned: Whether an evaluation was left out, as no encoder rank is there.
    """

    def __init__(
        self,
        context: RankContext,
        role: Role,
        *,
        backbone: BackbonePart | None,
        execute: Callable[[Action], None],
        planner: Planner | None,
    ) -> None:
        self._context = context
        self._role = role
        self._backbone = backbone
        self._execute = execute
        self._planner = planner
        self._next = FIRST_EVALUATION
        self._stopped = False
        self.is_abandoned = False

    def run(self, modules: list[torch.nn.Module]) -> Evaluation | None:
        """Evaluate the model.

        Args:
            modules: What this rank holds of it.

        Returns:
            The result, on ranks with the backbone. None if the run ends early on request: the rest
            of the evaluation is left out.

        Raises:
            PlanError: A held-out sample cannot be used.
        """
        if self._stopped:
            return None
        started = time.perf_counter()
        loss_sum = num_targets = num_skipped = 0.0
        samples = truncated = 0
        answers: dict[int, list[int]] = {}
        with ExitStack() as stack:
            for module in modules:
                stack.enter_context(inference(module))
            while (plan := self._plan()).kind != "end":
                for action in evaluation(plan, self._role):
                    self._execute(action)
                self._next += 1
                if self._backbone is None:
                    continue
                sums = self._backbone.sums
                if self._is_abandoned(sums):
                    self.is_abandoned = self._stopped = True
                    return None
                if plan.kind == "answer":
                    answers |= self._gathered(plan, sums.answers)
                    continue
                loss_sum += sums.loss_sum
                num_targets += sums.num_targets
                num_skipped += sums.num_skipped
                samples += len(plan.samples)
                truncated += plan.truncated
        self._end(plan)
        if self._backbone is None or self._stopped:
            return None
        world = self._context.world
        loss_sum, num_targets, num_skipped = world.sum([loss_sum, num_targets, num_skipped])
        return Evaluation(
            loss=loss_sum / num_targets if num_targets else float("nan"),
            num_targets=int(num_targets),
            samples=samples,
            skipped=int(num_skipped),
            dropped=plan.dropped,
            truncated=truncated,
            seconds=time.perf_counter() - started,
            answers=answers,
        )

    def _plan(self) -> StepPlan:
        with self._context.activity.events.span("plan", self._next):
            return self._context.plans.get(self._next)

    def _end(self, plan: StepPlan) -> None:
        """Take the plan behind the last batch."""
        self._context.plans.forget(plan.step)
        self._next += 1
        if self._planner is not None:
            self._planner.step_started()
        if plan.error is not None:
            raise PlanError(plan.error)
        self._stopped = plan.stopped

    def _is_abandoned(self, sums: StepSums) -> bool:
        """Whether some rank lacks rows of the batch."""
        if self._context.board is None:
            return False
        return self._context.world.sum([sums.is_abandoned])[0] > 0

    def _gathered(self, plan: StepPlan, answers: dict[int, list[int]]) -> dict[int, list[int]]:
        """Answers of all ranks to the prompts of a batch, on the first rank; none on others."""
        context, store = self._context, self._context.store
        key = f"answers/{plan.step}"
        if not context.world.reports:
            store.put(f"{key}/{context.world.replica}", list(answers.items()))
            return {}
        for replica in range(1, context.world.size):
            writer = context.layout.holder("backbone", replica)
            answers |= dict(store.get(f"{key}/{replica}", writer=writer))
            store.delete(f"{key}/{replica}")
        return dict(sorted(answers.items()))
