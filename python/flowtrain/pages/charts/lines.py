"""Lines over the steps of runs, binned where there are many steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from flowtrain.pages.charts.spec import LINE_LEGEND, Row, Spec, axis, spec

Floats = NDArray[numpy.float64]

_BINS = 250
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])


@dataclass(frozen=True, slots=True)
class Line:
    """Values over the steps of a run."""

    run: str
    what: str
    steps: Floats
    values: Floats
    points: bool = False
    """Whether each value has a mark, as where there are few."""


def over_steps(
    lines: Sequence[Line],
    title: str,
    *,
    percent: bool = False,
    may_be_log: bool = False,
    height: int = 220,
    colors: Mapping[str, str] | None = None,
) -> Spec | None:
    """Lines over steps, with bands from the least to the greatest value of a bin.

    Colors tell runs apart, and dashes what is shown; of one run, colors tell what is shown.

    Args:
        lines: The lines.
        title: Title of the axis of the values.
        percent: Whether values are shares.
        may_be_log: Whether the axis is logarithmic if values span more than a factor of 30.
        height: Height in pixels.
        colors: Colors of what is shown of one run, where other charts have it in the same ones.

    Returns:
        The chart; None if there is no value.
    """
    rows = [row for line in lines for row in _binned(line)]
    if not rows:
        return None
    values = [row["mean"] for row in rows]
    log = may_be_log and min(row["low"] for row in rows) > 0 and max(values) > 30 * min(values)
    runs = list(dict.fromkeys(line.run for line in lines))
    whats = list(dict.fromkeys(line.what for line in lines))
    color: Spec = {"field": "run" if len(runs) > 1 else "what", "type": "nominal"}
    color["sort"] = runs if len(runs) > 1 else whats
    color["legend"] = LINE_LEGEND if max(len(runs), len(whats)) > 1 else None
    if colors is not None and len(runs) == 1:
        color["scale"] = {"domain": whats, "range": [colors[what] for what in whats]}
    encoding: Spec = {
        "x": axis("step", "~s", field="step"),
        "color": color,
        "detail": [{"field": "run"}, {"field": "what"}],
    }
    if len(runs) > 1 and len(whats) > 1:
        encoding["strokeDash"] = {
            "field": "what",
            "type": "nominal",
            "sort": whats,
            "scale": {"range": list(_DASHES[: len(whats)])},
            "legend": {**LINE_LEGEND, "orient": "bottom"},
        }
    small = "~g" if log or max(values) < 1 else ",~f"
    form = "~%" if percent else "~s" if max(values) >= 1000 else small
    y: Spec = {
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log" if log else "linear", "zero": not log, "nice": not log},
        "axis": {"format": form, "tickCount": 5, **({"values": _powers(rows)} if log else {})},
    }
    number = {"type": "quantitative", "format": ".2%" if percent else ".4~s"}
    tooltip = [
        *({"field": name, "type": "nominal"} for name in ("run", "what")),
        {"field": "steps", "type": "nominal"},
        *({"field": name, **number} for name in ("mean", "low", "high")),
    ]
    band = {
        "transform": [{"filter": "datum.low < datum.high"}],
        "mark": {"type": "area", "opacity": 0.18, "clip": True},
        "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}, "strokeDash": None},
    }
    line = {
        "mark": {"type": "line", "strokeWidth": 1.6, "clip": True},
        "encoding": {"y": {"field": "mean", **y}, "tooltip": tooltip},
    }
    points = {
        "transform": [{"filter": "datum.point"}],
        "mark": {"type": "point", "filled": True, "size": 45, "clip": True},
        "encoding": {"y": {"field": "mean", **y}, "tooltip": tooltip, "strokeDash": None},
    }
    banded = any(row["low"] < row["high"] for row in rows)
    pointed = any(row["point"] for row in rows)
    layer = [*([band] if banded else []), line, *([points] if pointed else [])]
    return spec(rows, height=height, encoding=encoding, layer=layer)


def _powers(rows: Sequence[Row]) -> list[float]:
    """Powers of ten within the values."""
    low, high = (f(row[name] for row in rows) for f, name in ((min, "low"), (max, "high")))
    return [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _binned(line: Line) -> Iterator[Row]:
    keep = numpy.isfinite(line.values)
    steps, values = line.steps[keep], line.values[keep]
    size = 1 if line.points else max(1, -(-len(values) // _BINS))
    for first in range(0, len(values), size):
        part, own = values[first : first + size], steps[first : first + size]
        yield {
            "run": line.run,
            "what": line.what,
            "step": float(own.mean()),
            "steps": f"{own[0]:.0f}" if len(own) == 1 else f"{own[0]:.0f} to {own[-1]:.0f}",
            "mean": _short(part.mean()),
            "low": _short(part.min()),
            "high": _short(part.max()),
            "point": line.points or len(values) == 1,
        }


def _short(value: float) -> float:
    return float(f"{value:.5g}")
