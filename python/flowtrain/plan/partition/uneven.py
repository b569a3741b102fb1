"""Replay of 1F1B with microbatches that take different times."""

from __future__ import annotations

import numpy

from flowtrain.plan.arrays import FloatArray


def replay_uneven(forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Seconds from the first forward pass to the end of the last backward pass.

    As `replay`, with a time for every microbatch, and for many pipelines at once. Sends are part of
    the passes.

    Args:
        forward_s: Forward passes, shape [num_stages, num_microbatches, num_pipelines].
        backward_s: Backward passes, recomputation included, of the same shape.

    Returns:
        Seconds of each pipeline, shape [num_pipelines].

    Raises:
        ValueError: The shapes differ, or there is no stage or microbatch.
    """
    if forward_s.ndim != 3 or forward_s.shape != backward_s.shape or not all(forward_s.shape[:2]):
        raise ValueError(
            f"forward_s has shape {list(forward_s.shape)} and backward_s "
            f"{list(backward_s.shape)}; both must be [num_stages, num_microbatches, num_pipelines] "
            "with at least one stage and microbatch"
        )
    stages, microbatches, pipelines = forward_s.shape
    free_s = numpy.zeros((stages, pipelines))  # When a stage can begin its next pass.
    activations_s = numpy.zeros((stages + 1, pipelines))  # When its next input arrives.
    gradients_s = numpy.zeros((stages + 1, pipelines))
    # The slots of `replay`: stage s runs forward pass i in slot s + 2 i, and backward pass i in
    # slot 2 p - 1 - s + 2 i.
    for slot in range(2 * (stages + microbatches) - 2):
        for stage in range(stages):
            number, odd = divmod(slot - stage, 2)
            if not odd and 0 <= number < microbatches:
                begin_s = numpy.maximum(free_s[stage], activations_s[stage])
                free_s[stage] = activations_s[stage + 1] = begin_s + forward_s[stage, number]
            number, odd = divmod(slot - (2 * stages - 1 - stage), 2)
            if not odd and 0 <= number < microbatches:
                begin_s = numpy.maximum(free_s[stage], gradients_s[stage + 1])
                free_s[stage] = gradients_s[stage] = begin_s + backward_s[stage, number]
    found: FloatArray = free_s.max(axis=0)
    return found
