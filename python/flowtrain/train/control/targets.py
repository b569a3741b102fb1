"""Ends a run that trains nothing, as all its samples are skipped."""

from __future__ import annotations

from flowtrain.steps import StepPlan
from flowtrain_core import FlowTrainError

_STEPS = 3
_SAMPLES = 64


class NoTargetError(FlowTrainError, RuntimeError):
    """Successive steps, or all steps of a run, have no target token."""


class TargetCheck:
    """Follows the target tokens of steps; every rank that updates comes to the same result.

    Only samples with an image that cannot be used have no target. A few of them in a row may be all
    of a step of few samples, so the limit is 3 steps and 64 samples, or the whole run.

    Args:
        steps: Steps of the whole run.
    """

    def __init__(self, steps: int) -> None:
        self._last = steps - 1
        self._empty: list[int] = []
        self._samples = 0

    def stepped(self, plan: StepPlan, num_targets: int) -> None:
        """Take in a step.

        Args:
            plan: Its plan.
            num_targets: Its target tokens, without those of skipped samples.

        Raises:
            NoTargetError: This step and those before it had none.
        """
        if num_targets:
            self._empty, self._samples = [], 0
            return
        self._empty.append(plan.step)
        self._samples += len(plan.samples)
        first, count = self._empty[0], len(self._empty)
        is_whole_run = first == 0 and plan.step == self._last
        if is_whole_run or (count >= _STEPS and self._samples >= _SAMPLES):
            raise NoTargetError(
                f"steps {first} to {plan.step}: none of their {self._samples} samples has a target "
                "token, as each has an image or video that cannot be used, and data.bad_image="
                "skip; check the paths and data.image_root (`flowtrain data check` names each)"
            )
