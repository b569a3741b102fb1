"""Peak FLOP/s of a device, the denominator of MFU."""

from __future__ import annotations

import time
from collections.abc import Callable

# Dense peaks from the vendors' data sheets, bfloat16, in FLOP/s.
_BF16_PEAKS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}
_SECONDS = 0.2


def gpu_peak_flops(name: str) -> float | None:
    """Data-sheet peak of a GPU in dense bfloat16 by its name, or None if it is not listed."""
    for part, peak in _BF16_PEAKS.items():
        if all(word in name for word in part.split()):
            return peak
    return None


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
