from __future__ import annotations

import numpy

from flowtrain.packing import FormedStep
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
