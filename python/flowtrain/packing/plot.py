"""Plots a comparison of policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy

from flowtrain.packing.compare import Comparison


def plot_comparison(rows: Sequence[Comparison], path: Path, *, title: str) -> None:
    """Draw the slots of the first step per policy: computing, and waiting for the slowest rank.

    Args:
        rows: One bar each, the first one on top.
        path: File to write; its suffix decides the format.
        title: Description of the samples.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the suffix.
        OSError: The file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.4 * len(rows)), layout="constrained")
    unit = min(float(row.loads.max(axis=1).sum()) for row in rows) or 1.0
    for place, row in enumerate(rows):
        slowest, mean = row.loads.max(axis=1) / unit, row.loads.mean(axis=1) / unit
        left = numpy.cumsum(slowest) - slowest
        axes.barh(place, mean, left=left, color="tab:blue", label="computing")
        axes.barh(place, slowest - mean, left=left + mean, color="tab:orange", label="waiting")
        # Thin enough for many slots.
        axes.vlines(left[1:], place - 0.4, place + 0.4, color="white", linewidth=0.7)
        total = float(slowest.sum())
        waiting = 1 - float(mean.sum()) / total if total else 0.0
        axes.text(total, place, f" {total:.3f}, {waiting:.1%} waiting", va="center")
    axes.set_yticks(range(len(rows)), [row.policy for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.3, y=0.02)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("lock-step time of the first step, mean over ranks; the shortest is 1")
    axes.set_title(title, fontsize="medium", loc="left")
    known = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(known.values(), known.keys(), loc="outside lower right", ncols=2)
    figure.savefig(path)
    pyplot.close(figure)
