"""Columns of a comparison, with the format of their values."""

from __future__ import annotations

from flowtrain.packing.compare import Comparison

COLUMNS = {
    "policy": ("policy", "s"),
    "waiting": ("waiting", ".2%"),
    "gap": ("gap", ".3%"),
    "dist_ratio": ("dist", ".4f"),
    "encoder_dist_ratio": ("encoder", ".4f"),
    "pad_ratio": ("pad", ".4f"),
    "max_over_mean": ("max/mean", ".4f"),
    "fill": ("fill", ".3f"),
    "microbatches": ("slots", "d"),
    "milliseconds": ("ms", ".2f"),
}
"""Title and format, by field of `Comparison`."""


def cells(row: Comparison) -> list[str]:
    """The values of a row as texts, in the order of the columns."""
    return [format(getattr(row, name), style) for name, (_, style) in COLUMNS.items()]
