from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy
import pytest

from flowtrain.packing import FormedStep, PackingError, Sizes, StepBuilder, StepShape
from flowtrain_core.packing import schedule


def test_different_steps_have_different_checksums() -> None:
    plan = schedule([1, 2, 3], [1, 2, 3], ranks=2, microbatches=1, max_tokens=6)
    other = schedule([1, 2, 3], [1, 2, 4], ranks=2, microbatches=1, max_tokens=6)
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


class Equal:
    """Samples with an equal number of tokens."""

    def __init__(self, count: int, tokens: int = 10) -> None:
        self._keys = numpy.arange(count)
        self._tokens = tokens

    def take(self, count: int) -> tuple[Any, Sizes]:
        taken, self._keys = self._keys[:count], self._keys[count:]
        tokens = numpy.full(len(taken), self._tokens)
        return taken, Sizes(tokens=tokens, cost=tokens.astype(float))


def test_a_wide_window_drops_no_full_step_at_the_end() -> None:
    shape = StepShape(ranks=1, max_tokens=100, max_age=1, window=4.0, drop_last=True)
    builder, source, placed = StepBuilder(shape), Equal(100), 0
    while (step := builder.next(source)) is not None:
        placed += len(step.placed)
    # Less than a step is left.
    assert 90 < placed <= 100


def test_tokens_may_exceed_the_integers_of_a_double() -> None:
    shape = StepShape(ranks=1, max_tokens=1 << 60, max_age=1, window=1.0)
    step = StepBuilder(shape).next(Equal(1, (1 << 60) - 1))
    assert step is not None and step.placed == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": float("nan")}, "window=nan: it must be at least 1 step, and finite"),
        ({"window": float("inf")}, "window=inf: it must be at least 1 step, and finite"),
        ({"window": "wide"}, "window='wide': it must be a number"),
        ({"microbatches": 2.0}, "microbatches=2.0: it must be a whole number"),
        ({"max_tokens": 100.0}, "max_tokens=100.0: it must be a whole number"),
        ({"max_tokens": 1 << 62}, "at least 1 and below 2.62"),
        ({"max_age": -1}, "max_age=-1: it must be at least 0"),
    ],
)
def test_an_invalid_shape_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PackingError, match=message):
        StepShape(**{"ranks": 1, "max_tokens": 100, "max_age": 1, **change})


def test_numpy_numbers_become_python_numbers() -> None:
    shape = StepShape(
        ranks=numpy.int64(2), max_tokens=numpy.int32(100), max_age=numpy.int8(1),
        window=numpy.float32(2),
    )  # fmt: skip
    assert json.loads(json.dumps(asdict(shape)))["max_tokens"] == 100


def test_only_a_lack_of_room_is_reported_as_such() -> None:
    def error(**options: Any) -> str:
        with pytest.raises(PackingError) as raised:
            StepBuilder(StepShape(batch_size=2, **options)).next(Equal(8))
        return str(raised.value)

    wrong = error(ranks=1 << 13, max_tokens=100, microbatches=1 << 13)
    assert "product at most 16777216" in wrong and "no room" not in wrong
    assert "cannot fit into 1 x 1 bins" in error(ranks=1, max_tokens=19)
