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


LINE_LEGEND = {
    "title": None,
    "orient": "top",
    "labelLimit": 220,
    "symbolType": "stroke",
    "symbolOpacity": 1,
    "symbolStrokeWidth": 2,
    "columns": {"expr": "clamp(floor(width / 120), 2, 8)"},
}
"""Legend of lines, with the colors of the lines and not of the bands."""
