"""Parts of specifications that all charts use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]
"""A Vega-Lite specification, with its data."""
Row = dict[str, Any]
"""A datum of a chart."""


def spec(rows: Sequence[Row], *, height: int = 220, **parts: Any) -> Spec:
    """A chart as wide as its place in the page."""
    return {
        "data": {"values": list(rows)},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **parts,
    }


def axis(title: str | None, format: str = ",~f", **parts: Any) -> Spec:
    """Encoding of numbers along x, without a grid, with as many ticks as there is space for."""
    ticks: Spec = {"format": format, "grid": False, "tickCount": {"expr": "ceil(width / 90)"}}
    if format == "~s":  # Counts, such as steps.
        ticks["tickMinStep"] = 1
    scale = {"nice": False}
    return {"type": "quantitative", "title": title, "scale": scale, "axis": ticks, **parts}


def rows_of(field: str, names: Sequence[str], title: str | None = None) -> Spec:
    """Encoding of names along y, in their order, whole where there is space."""
    limit = {"labelLimit": {"expr": "width < 500 ? 100 : 300"}}
    return {"field": field, "type": "nominal", "sort": list(names), "title": title, "axis": limit}


def columns(width: int, *, most: int) -> Spec:
    """Columns of a legend, each of so many pixels.

    They follow the width of the place: that of the plot depends on the size of the legend itself.
    """
    return {"expr": f"clamp(floor((containerSize()[0] - 60 + 0 * width) / {width}), 2, {most})"}


LINE_LEGEND = {
    "title": None,
    "orient": "top",
    "labelLimit": 220,
    "symbolType": "stroke",
    "symbolOpacity": 1,
    "symbolStrokeWidth": 2,
    "columns": columns(120, most=8),
}
"""Legend of lines, with the colors of the lines and not of the bands."""


def parts_legend(names: Sequence[str]) -> Spec | None:
    """Legend of the parts of a whole, with as many columns as there is space for; None of one."""
    if len(names) < 2:
        return None
    return {"title": None, "orient": "top", "columns": columns(115, most=8)}


def row_heights(count: int, row: int) -> int:
    """Height of a chart with so many rows; many are lower."""
    return max(count, 1) * (row if count <= 16 else min(row, 16))
