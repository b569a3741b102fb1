"""Peak FLOP/s of a device, the denominator of MFU."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowtrain.cost.accelerators import device_accelerator

_SECONDS = 0.2


def gpu_peak_flops(name: str) -> float | None:
    """Data-sheet peak of a GPU in dense bfloat16 by its name, or None if it is not known."""
    accelerator = device_accelerator(name)
    return None if accelerator is None else accelerator.bf16_flops


def measured_peak_flops(run: Callable[[], object], flops: float) -> float:
    """Maximum FLOP/s over repeated runs, for a fifth of a second.

    Args:
        run: The work, for example a large matrix product in the dtype of the training.
        flops: FLOPs of one run.
    """
    best = 0.0
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        run()
        best = max(best, flops / (time.perf_counter() - started))
    return best
