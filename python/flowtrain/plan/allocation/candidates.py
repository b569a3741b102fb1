"""Candidates for the layout of a module: what each costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray, integers, seconds

MAX_GPUS_BITS = 20
"""Limit of a number of GPUs: a search holds arrays of that length."""

_MAX_BYTES_BITS = 60


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidates:
    """Layouts that a module can have on GPUs of one type, and what each costs.

    The step of an allocation is the sum of `fill_s` over the modules, plus (microbatches - 1) times
    the largest `microbatch_s`, plus the largest `update_s`. Lists become arrays; one number holds
    for all candidates.

    Attributes:
        gpus: GPUs that a candidate takes, integers of shape [num_candidates].
        microbatch_s: Seconds from one microbatch to the next, shape [num_candidates].
        fill_s: Seconds of the first microbatch through the module, forward and backward, shape
            [num_candidates]. The sum over equal pipeline stages is stages x microbatch_s.
        update_s: Seconds after the last microbatch: reduction of gradients and optimizer, shape
            [num_candidates].
        memory_bytes: Peak memory of the GPU that needs the most, integers of shape
            [num_candidates].
        gpu_type: Name of the type of GPU.

    Raises:
        ValueError: A shape is not that of `gpus`, there is no candidate, a time is negative or not
            finite, a count or size is no integer or out of its range, or the type has no name.
    """

    gpus: IntArray
    microbatch_s: FloatArray
    fill_s: FloatArray
    memory_bytes: IntArray
    update_s: FloatArray = 0.0  # type: ignore[assignment]
    gpu_type: str = "gpu"

    def __post_init__(self) -> None:
        shape = numpy.shape(self.gpus)
        if len(shape) != 1 or not shape[0]:
            raise ValueError(
                f"gpus: shape must be [num_candidates], 1 candidate or more, not {list(shape)}"
            )
        if not isinstance(self.gpu_type, str) or not self.gpu_type:
            raise ValueError(f"gpu_type={self.gpu_type!r}: give the name of a type of GPU")
        gpus = integers("gpus", self.gpus, shape, low=1, high_bits=MAX_GPUS_BITS)
        memory = integers("memory_bytes", self.memory_bytes, shape, high_bits=_MAX_BYTES_BITS)
        object.__setattr__(self, "gpus", gpus)
        object.__setattr__(self, "memory_bytes", memory)
        for name in ("microbatch_s", "fill_s", "update_s"):
            object.__setattr__(self, name, seconds(name, getattr(self, name), shape))

    def __len__(self) -> int:
        return len(self.gpus)
