"""A run whose samples are all skipped ends; a few bad samples in a row do not end one."""

from __future__ import annotations

import pytest

from flowtrain.steps import StepPlan
from flowtrain.train.control.targets import NoTargetError, TargetCheck


def step(check: TargetCheck, steps: range, *, samples: int, num_targets: int = 0) -> None:
    for step in steps:
        plan = StepPlan(step=step, kind="train", samples=tuple(range(samples)))
        check.stepped(plan, num_targets)


def test_steps_of_few_samples_may_have_no_target() -> None:
    check = TargetCheck(1000)
    step(check, range(63), samples=1)
    step(check, range(63, 64), samples=1, num_targets=1)
    step(check, range(64, 127), samples=1)
    with pytest.raises(NoTargetError, match="steps 64 to 127: none of their 64 samples"):
        step(check, range(127, 128), samples=1)


def test_three_large_steps_without_a_target_end_the_run() -> None:
    check = TargetCheck(1000)
    step(check, range(500, 502), samples=512)
    with pytest.raises(NoTargetError, match="steps 500 to 502: none of their 1536 samples"):
        step(check, range(502, 503), samples=512)


def test_a_short_run_without_a_target_fails_with_its_last_step() -> None:
    step(TargetCheck(3), range(1, 3), samples=8)  # A resumed run has trained before.
    with pytest.raises(NoTargetError, match="steps 0 to 2: none of their 24 samples"):
        step(TargetCheck(3), range(3), samples=8)
