"""Charts of the time of ranks: shares, shares over steps, waits for each other, and timelines."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy

from flowtrain.observe.report.charts.colors import by_group
from flowtrain.observe.report.columns import Columns
from flowtrain.observe.report.groups import GROUPS
from flowtrain.observe.report.timeline import Timeline
from flowtrain.observe.report.waits import OTHERS, PLANNER, Waits
from flowtrain.pages.charts.spec import LINE_LEGEND, Row, Spec, axis, rows_of, spec

_BINS = 120
_MAX_TEXTS = 12
MAX_LEVELS = 6
_SHARE = {"type": "quantitative", "format": ".1%"}


def _height(ranks: Collection[str], row: int) -> int:
    """Height of a chart with a row for each rank; rows of many ranks are lower."""
    return len(ranks) * (row if len(ranks) <= 16 else min(row, 16))


def shares_of_time(seconds: Mapping[str, Mapping[str, float]]) -> Spec:
    """A bar for each rank: its wall-clock, by group of activity.

    Args:
        seconds: By rank and group.
    """
    rows: list[Row] = [
        {
            "rank": rank,
            "group": group,
            "seconds": round(spent, 4),
            "share": spent / total,
            "order": GROUPS.index(group),
        }
        for rank, groups in seconds.items()
        for total in [sum(groups.values())]
        for group, spent in groups.items()
        if spent > 0
    ]
    encoding = {
        "y": rows_of("rank", list(seconds)),
        "x": axis("share of the rank's time", "%", field="share", scale={"domain": [0, 1]}),
        "color": by_group([row["group"] for row in rows]),
        "order": {"field": "order"},
        "tooltip": [
            *({"field": name, "type": "nominal"} for name in ("rank", "group")),
            {"field": "seconds", "type": "quantitative"},
            {"field": "share", **_SHARE},
        ],
    }
    return spec(
        rows, height=_height(seconds, 26), mark={"type": "bar", "clip": True}, encoding=encoding
    )


def shares_over_steps(timing: Columns, world: str) -> Spec | None:
    """Areas: what the ranks of a world did in the course of a run, in the mean over them."""
    names = [name for name in GROUPS if f"{world}/{name}" in timing]
    seconds = numpy.nan_to_num(numpy.array([timing[f"{world}/{name}"] for name in names]))
    if not names or seconds.shape[1] < 2:
        return None
    size = -(-seconds.shape[1] // _BINS)
    starts = numpy.arange(0, seconds.shape[1], size)
    sums = numpy.add.reduceat(seconds, starts, axis=1)
    sums /= numpy.maximum(sums.sum(axis=0), 1e-12)
    rows: list[Row] = [
        {"step": step, "group": name, "share": round(share, 4), "order": GROUPS.index(name)}
        for name, shares in zip(names, sums.tolist(), strict=True)
        for step, share in zip(timing["step"][starts].tolist(), shares, strict=True)
    ]
    encoding = {
        "x": axis("step", "~s", field="step"),
        "y": {
            "field": "share",
            "type": "quantitative",
            "stack": "zero",
            "title": "share of time",
            "scale": {"domain": [0, 1]},
            "axis": {"format": "%", "tickCount": 5},
        },
        "color": by_group(names),
        "order": {"field": "order"},
        "tooltip": [
            {"field": "group", "type": "nominal"},
            {"field": "step", "type": "quantitative"},
            {"field": "share", **_SHARE},
        ],
    }
    mark = {"type": "area", "clip": True, "interpolate": "step-after"}
    return spec(rows, height=200, mark=mark, encoding=encoding)


def wait_matrix(waits: Waits) -> Spec:
    """A cell for each pair of ranks: how long one waited for the other."""
    others = {other for _, other in waits.waited}
    columns = [*waits.ranks, *(each for each in (PLANNER, OTHERS) if each in others)]
    rows: list[Row] = [
        {
            "rank": rank,
            "for": other,
            "share": waits.waited.get((rank, other), 0.0) / waits.seconds,
            "ms": waits.waited.get((rank, other), 0.0) * 1e3 / max(waits.steps, 1),
        }
        for rank in waits.ranks
        for other in columns
        if rank != other
    ]
    top = max((row["share"] for row in rows), default=0.0)
    angle = 0 if len(columns) <= 4 else -30 if len(columns) <= _MAX_TEXTS else -90
    labels = {"orient": "top", "labelAngle": angle, "labelOverlap": len(columns) > _MAX_TEXTS}
    place = {
        "y": rows_of("rank", waits.ranks, "who waits"),
        "x": {
            "field": "for",
            "type": "nominal",
            "sort": columns,
            "title": "for whom",
            "axis": labels,
        },
    }
    cells = {
        "mark": {"type": "rect", "cornerRadius": 2},
        "encoding": {
            "color": {
                "field": "share",
                "type": "quantitative",
                "scale": {"domain": [0, max(top, 0.05)], "range": ["#e4572e18", "#e4572e"]},
                "legend": None,
            },
            "tooltip": [
                *({"field": name, "type": "nominal"} for name in ("rank", "for")),
                {"field": "share", **_SHARE, "title": "share of its time"},
                {"field": "ms", "type": "quantitative", "format": ".3~f", "title": "ms a step"},
            ],
        },
    }
    texts = {
        "mark": {"type": "text", "fontSize": 12},
        "encoding": {"text": {"field": "share", "type": "quantitative", "format": ".1%"}},
    }
    layer = [cells, *([texts] if len(columns) <= _MAX_TEXTS else [])]
    height = _height(waits.ranks, 34)
    return spec(rows, height=height, encoding=place, layer=layer)


def timeline(shown: Timeline) -> Spec:
    """A row for each rank, with what it did and for what it waited."""
    rows: list[Row] = [
        {
            "rank": each.rank,
            "start": round(each.start, 4),
            "end": round(each.end, 4),
            "ms": round(each.end - each.start, 4),
            "group": each.group,
            "what": each.what,
        }
        for each in shown.slices
    ]
    encoding = {
        "y": rows_of("rank", shown.ranks),
        "x": axis("ms", field="start"),
        "x2": {"field": "end"},
        "color": by_group([row["group"] for row in rows]),
        "tooltip": [
            *({"field": name, "type": "nominal"} for name in ("rank", "what", "group")),
            {"field": "start", "type": "quantitative", "title": "from ms"},
            {"field": "ms", "type": "quantitative", "title": "for ms"},
        ],
    }
    # The layers of a bar are drawn in the order of its rows: what is nested comes later.
    return spec(
        rows,
        height=_height(shown.ranks, 38),
        mark={"type": "bar", "clip": True},
        encoding=encoding,
    )


def pool_levels(shown: Timeline) -> Spec | None:
    """Bytes of records in the pool over the time of a timeline, of the ranks with the most."""
    peaks = dict.fromkeys(shown.ranks, 0)
    for level in shown.levels:
        peaks[level.rank] = max(peaks[level.rank], level.bytes)
    if not any(peaks.values()):
        return None
    fullest = sorted(peaks, key=lambda label: -peaks[label])[:MAX_LEVELS]
    ranks = [label for label in shown.ranks if label in fullest]
    rows = [
        {"rank": level.rank, "at": round(level.at, 4), "bytes": level.bytes}
        for level in shown.levels
        if level.rank in ranks
    ]
    encoding = {
        "x": axis("ms", field="at"),
        "y": {
            "field": "bytes",
            "type": "quantitative",
            "title": "bytes",
            "axis": {"format": "~s", "tickCount": 4},
        },
        "color": {
            "field": "rank",
            "type": "nominal",
            "sort": ranks,
            "legend": LINE_LEGEND,
        },
        "tooltip": [
            {"field": "rank", "type": "nominal"},
            {"field": "at", "type": "quantitative", "title": "ms"},
            {"field": "bytes", "type": "quantitative", "format": ",d"},
        ],
    }
    mark = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.4, "clip": True}
    return spec(rows, height=160, mark=mark, encoding=encoding)
