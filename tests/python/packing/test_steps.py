from __future__ import annotations

from typing import Any

import numpy

from flowtrain.packing import FormedStep, Sizes, StepFormer, StepShape
from flowtrain_core.packing import schedule


def test_a_checksum_tells_steps_apart() -> None:
    plan = schedule([1, 2, 3], [1, 2, 3], ranks=2, microbatches=1, token_cap=6)
    other = schedule([1, 2, 3], [1, 2, 4], ranks=2, microbatches=1, token_cap=6)
    keys, targets = numpy.array([7, 8, 9]), numpy.array([1, 1, 1])
    step = FormedStep(keys=keys, targets=targets, plan=plan)
    same = FormedStep(keys=keys.copy(), targets=targets.copy(), plan=plan)
    assert step.checksum() == same.checksum()
    sums = {
        step.checksum(),
        step.checksum(1),
        FormedStep(keys=keys[::-1], targets=targets, plan=plan).checksum(),
        FormedStep(keys=keys, targets=2 * targets, plan=plan).checksum(),
        FormedStep(keys=keys, targets=None, plan=plan).checksum(),
        FormedStep(keys=keys, targets=targets, plan=other).checksum(),
    }
    assert len(sums) == 6


class Tens:
    """Samples of ten tokens each."""

    def __init__(self, count: int) -> None:
        self._keys = numpy.arange(count)

    def take(self, count: int) -> tuple[Any, Sizes]:
        taken, self._keys = self._keys[:count], self._keys[count:]
        tokens = numpy.full(len(taken), 10)
        return taken, Sizes(tokens=tokens, cost=tokens.astype(float))


def test_a_wide_window_drops_no_whole_step_at_the_end() -> None:
    shape = StepShape(ranks=1, token_cap=100, max_age=1, window=4.0, drop_last=True)
    former, source, placed = StepFormer(shape), Tens(100), 0
    while (step := former.next(source)) is not None:
        placed += len(step.placed)
    # Less than a step is left.
    assert 90 < placed <= 100
