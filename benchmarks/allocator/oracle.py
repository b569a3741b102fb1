"""The best step by enumeration of all choices of candidates, without FlowTrain's solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from flowtrain.plan.allocation import Candidates


def all_steps(
    offers: Mapping[str, Sequence[Candidates]],
    *,
    gpus: int | Mapping[str, int],
    microbatches: int,
    memory_bytes: int | Mapping[str, int],
) -> numpy.ndarray:
    """Steps of all choices that fit, in no order."""

    def limit(of: Any, gpu_type: str) -> int:
        return of if isinstance(of, int) else of[gpu_type]

    found = []
    for chosen in itertools.product(*offers.values()):  # A type for each module.
        shape = [len(candidates) for candidates in chosen]
        fill, longest, update = numpy.zeros(shape), numpy.zeros(shape), numpy.zeros(shape)
        fits = numpy.ones(shape, bool)
        taken: dict[str, numpy.ndarray] = {}
        for axis, candidates in enumerate(chosen):
            along = [1] * len(shape)
            along[axis] = -1
            fill = fill + candidates.fill_s.reshape(along)
            longest = numpy.maximum(longest, candidates.microbatch_s.reshape(along))
            update = numpy.maximum(update, candidates.update_s.reshape(along))
            size = candidates.memory_bytes.reshape(along)
            fits = fits & (size <= limit(memory_bytes, candidates.gpu_type))
            pool = "" if isinstance(gpus, int) else candidates.gpu_type
            taken[pool] = taken.get(pool, 0) + candidates.gpus.reshape(along)
        for pool, count in taken.items():
            fits = fits & (count <= limit(gpus, pool))
        found.append((fill + (microbatches - 1) * longest + update)[fits])
    return numpy.concatenate(found)


def best_step_s(offers: Mapping[str, Sequence[Candidates]], **limits: Any) -> float:
    """The minimum over all choices, infinite if nothing fits."""
    return float(all_steps(offers, **limits).min(initial=math.inf))
