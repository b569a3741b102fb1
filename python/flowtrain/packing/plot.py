"""A picture of what policies make of the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy

from flowtrain.packing.compare import Comparison


def plot_comparison(rows: Sequence[Comparison], path: Path) -> None:
    """Draw, per policy, the first step's slots: computing, and waiting for the slowest rank.

    Args:
        rows: One bar each, the first on top.
        path: File to write; its suffix chooses the format.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.5 + 0.45 * len(rows)), layout="constrained")
    scale = min(float(row.loads.max(axis=1).sum()) for row in rows) or 1.0
    for place, row in enumerate(rows):
        left = 0.0
        for slot in row.loads:
            length, mean = float(slot.max()) / scale, float(numpy.mean(slot)) / scale
            axes.barh(place, mean, left=left, color="tab:blue", edgecolor="white")
            axes.barh(place, length - mean, left=left + mean, color="tab:orange")
            left += length
    axes.set_yticks(range(len(rows)), [row.policy for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("lock-step time of a step, shortest = 1 (blue: computing, orange: waiting)")
    figure.savefig(path)
    pyplot.close(figure)
