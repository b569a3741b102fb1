"""The microbatches of a step in arrival order and as packed, sample by sample."""

from __future__ import annotations

import numpy

from drawn.style import BACKBONE, TEXT, WAITING, Spec, picture
from flowtrain.packing.compare import Comparison

_ROW = 22
_PLOT = 700
_SAMPLE = "a sample, as long as its cost"
_WAIT = "waiting for the slowest rank"


def packings(before: Comparison, after: Comparison, *, of: str) -> Spec:
    """Two schedules of the first step, on one axis of time.

    Args:
        before: The schedule above.
        after: The schedule below.
        of: What the samples are.
    """
    rows = {"In arrival order": before, "As FlowTrain packs them": after}
    ends = {name: float(row.first.loads.max(axis=1).sum()) for name, row in rows.items()}
    unit = ends["As FlowTrain packs them"]
    top = max(ends.values()) / unit
    panels = [
        _panel(
            f"{name}: ranks wait {_share(1 - row.first.efficiency)} of the step"
            + (f", which takes {ends[name] / unit:.2f} times as long" if row is before else ""),
            row,
            unit,
            top,
        )
        for name, row in rows.items()
    ]
    panels[0]["layer"][0]["encoding"]["x"]["axis"] = None
    panels[0]["layer"][0]["encoding"]["color"]["legend"] = None
    panels[1]["layer"].append(_recovered(after, top))
    return picture(f"What packing recovers: {of}", panels)


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}" if share >= 0.001 else "below 0.1%"


def _recovered(after: Comparison, top: float) -> Spec:
    """A text where the step would go on."""
    return {
        "data": {"values": [{"at": (1 + top) / 2}]},
        "mark": {
            "type": "text",
            "text": [f"{1 - 1 / top:.0%} of the", "time", "recovered"],
            "fontSize": 16,
            "fontWeight": "bold",
            "color": BACKBONE,
            "lineHeight": 20,
            "y": _ROW * after.first.ranks / 2 - 20,
        },
        "encoding": {"x": {"field": "at", "type": "quantitative"}},
    }


def _panel(title: str, row: Comparison, unit: float, top: float) -> Spec:
    plan = row.first
    loads = plan.loads / unit
    slowest = loads.max(axis=1)
    starts = numpy.cumsum(slowest) - slowest
    rows = []
    for rank in range(plan.ranks):
        for slot in range(plan.microbatches):
            at = float(starts[slot])
            own = numpy.flatnonzero((plan.slot == slot) & (plan.rank == rank))
            for cost in sorted((plan.cost[own] / unit).tolist(), reverse=True):
                rows.append((rank, at, at + cost, _SAMPLE))
                at += cost
            end = float(starts[slot] + slowest[slot])
            if end - at > top / 2000:
                rows.append((rank, at, end, _WAIT))
    values = [
        {"row": f"rank {rank}", "from": round(a, 4), "to": round(b, 4), "kind": kind}
        for rank, a, b, kind in rows
    ]
    names = [f"rank {rank}" for rank in range(plan.ranks)]
    bars = {
        "data": {"values": values},
        "mark": {
            "type": "bar",
            "height": {"band": 0.84},
            "stroke": "white",
            "strokeWidth": 0.7,
        },
        "encoding": {
            "y": {
                "field": "row",
                "type": "nominal",
                "sort": names,
                "title": None,
                "axis": {"domain": False, "ticks": False, "labelPadding": 8},
            },
            "x": {
                "field": "from",
                "type": "quantitative",
                "title": "time of the step, 1 = as packed; ranks meet at the black lines",
                "scale": {"domain": [0, top], "nice": False},
                "axis": {"tickCount": 7, "format": ".1f"},
            },
            "x2": {"field": "to"},
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": {"domain": [_SAMPLE, _WAIT], "range": [BACKBONE, WAITING]},
                "legend": {"orient": "bottom", "direction": "horizontal", "offset": 6},
            },
        },
    }
    meetings = {
        "data": {"values": [{"at": round(float(end), 4)} for end in starts + slowest]},
        "mark": {"type": "rule", "strokeWidth": 1.5, "color": TEXT},
        "encoding": {"x": {"field": "at", "type": "quantitative"}},
    }
    return {
        "title": title,
        "width": _PLOT,
        "height": _ROW * plan.ranks,
        "layer": [bars, meetings],
    }
