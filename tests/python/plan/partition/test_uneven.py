from __future__ import annotations

import numpy
import pytest

from flowtrain.plan.partition import replay, replay_uneven


def test_even_microbatches_take_what_the_replay_says() -> None:
    random = numpy.random.default_rng(0)
    for stages, microbatches in ((1, 1), (1, 5), (3, 1), (4, 3), (4, 9)):
        forward, backward = random.random((2, stages, 1, 2))
        wide = numpy.ones((stages, microbatches, 2))
        expected = [
            replay(forward[:, 0, i].tolist(), backward[:, 0, i].tolist(), microbatches=microbatches)
            for i in range(2)
        ]
        assert replay_uneven(forward * wide, backward * wide) == pytest.approx(expected)


def test_a_long_microbatch_delays_the_stages_behind_it_alone() -> None:
    # Two stages, two microbatches; the second is three times as long. By hand: forward passes of
    # stage 0 end at 1 and 4, those of stage 1 at 2 and 7, with a backward pass from 2 to 3 between.
    load = numpy.array([1.0, 3.0])[None, :, None] * numpy.ones((2, 1, 1))
    # Stage 1: forward until 2, backward until 3, forward from 4 until 7, backward until 10. Stage 0
    # runs its last backward pass from 10 until 13.
    assert replay_uneven(load, load).tolist() == [13.0]


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"forward_s has shape \[2, 3, 1\]"):
        replay_uneven(numpy.ones((2, 3, 1)), numpy.ones((2, 2, 1)))
