"""Two steps of a colocated and of a decoupled run, from their events."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from drawn.style import BACKBONE, ENCODER, OTHER, SOFT, TEXT, WAITING, Spec, picture
from flowtrain.observe.report.columns import read_timing
from flowtrain.observe.report.timeline import Slice, Timeline, read_timeline

_STEPS = 2
_FIRST = 3  # Earlier steps warm up.
_ROW = 46
_PLOT = 600
_COLORS = {
    "encoder passes": ENCODER,
    "backbone passes": BACKBONE,
    "other": OTHER,
    "waiting": WAITING,
}
_FOR_ANOTHER = ("wait: record", "wait: free slab", "wait: gradient sum", "wait: reports")


@dataclass(frozen=True, slots=True)
class Panel:
    """A run in the picture."""

    title: str
    folder: Path
    names: dict[str, str]
    """Names of the rows, by label of the rank."""


def typical_steps(panels: Sequence[Panel]) -> range:
    """Steps that are closest to the medians of all runs."""
    found = [read_timing(panel.folder) for panel in panels]
    away = numpy.sum(
        [numpy.abs(timing["seconds"] / numpy.median(timing["seconds"]) - 1) for timing in found],
        axis=0,
    )
    sums = numpy.convolve(away, numpy.ones(_STEPS), "valid")
    start = _FIRST + int(numpy.argmin(sums[_FIRST:-1]))
    return range(start, start + _STEPS)


def timelines(panels: Sequence[Panel]) -> Spec:
    """The runs below each other, on one axis of time."""
    steps = typical_steps(panels)
    shown = [read_timeline(panel.folder, steps) for panel in panels]
    top = max(each.end for one in shown for each in one.slices)
    drawn = [_panel(panel, one, top) for panel, one in zip(panels, shown, strict=True)]
    for part in drawn[:-1]:
        part["layer"][0]["encoding"]["x"]["axis"] = None
        part["layer"][0]["encoding"]["color"]["legend"] = None
    return picture("Who waits for whom: the same two steps in two layouts", drawn)


def _panel(panel: Panel, shown: Timeline, top: float) -> Spec:
    rows, shares = [], []
    other = dict(zip(shown.ranks, reversed(shown.ranks), strict=True))
    for rank, name in panel.names.items():
        spans = flattened([each for each in shown.slices if each.rank == rank], top / 900)
        rows += [
            {"row": name, "from": round(start, 2), "to": round(end, 2), "kind": kind}
            for start, end, kind in spans
        ]
        waited = sum(end - start for start, end, kind in spans if kind == "waiting")
        said = [f"waits {waited / spans[-1][1]:.0%}", f"for {panel.names[other[rank]]}"]
        shares.append({"row": name, "said": said})
    names = list(panel.names.values())
    y = {"field": "row", "type": "nominal", "sort": names, "title": None}
    bars = {
        "data": {"values": rows},
        "mark": {"type": "bar", "height": {"band": 0.86}},
        "encoding": {
            "y": {**y, "axis": {"domain": False, "ticks": False, "labelPadding": 8}},
            "x": {
                "field": "from",
                "type": "quantitative",
                "title": "milliseconds",
                "scale": {"domain": [0, top], "nice": False},
                "axis": {"tickCount": 8, "format": ",~f"},
            },
            "x2": {"field": "to"},
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": {"domain": list(_COLORS), "range": list(_COLORS.values())},
                "legend": {"orient": "bottom", "direction": "horizontal", "offset": 6},
            },
        },
    }
    ends = [{"at": round(end, 2), "said": f"step {step} ends"} for step, end in _ends(shown)]
    x = {"field": "at", "type": "quantitative"}
    rules = {
        "data": {"values": ends},
        "mark": {"type": "rule", "strokeDash": [3, 3], "strokeWidth": 1.5, "color": TEXT},
        "encoding": {"x": x},
    }
    marks = {
        "data": {"values": ends},
        "mark": {
            "type": "text",
            "fontSize": 12,
            "color": SOFT,
            "y": -7,
            "align": "right",
        },
        "encoding": {"x": x, "text": {"field": "said"}},
    }
    share = {
        "data": {"values": shares},
        "mark": {
            "type": "text",
            "fontSize": 13,
            "lineHeight": 16,
            "dy": -8,
            "align": "left",
            "x": _PLOT + 10,
            "color": WAITING,
            "fontWeight": "bold",
        },
        "encoding": {"y": y, "text": {"field": "said"}},
    }
    return {
        "title": {"text": f"{panel.title}: {_mean_ms(shown):.0f} ms a step", "offset": 14},
        "width": _PLOT,
        "height": _ROW * len(names),
        "layer": [bars, rules, marks, share],
    }


def _mean_ms(shown: Timeline) -> float:
    return _ends(shown)[-1][1] / len(shown.steps)


def _ends(shown: Timeline) -> list[tuple[int, float]]:
    """End of the last optimizer step of each step."""
    return [
        (
            step,
            max(
                each.end
                for each in shown.slices
                if each.group == "optimizer" and each.what.endswith(f"of step {step}")
            ),
        )
        for step in shown.steps
    ]


def flattened(slices: Sequence[Slice], shortest: float) -> list[tuple[float, float, str]]:
    """The visible parts of slices drawn over each other; the shortest join the one before."""
    edges = sorted({time for each in slices for time in (each.start, each.end)})
    spans: list[tuple[float, float, str]] = []
    for start, end in itertools.pairwise(edges):
        (*_, top) = (each for each in slices if each.start <= start and each.end >= end)
        kind = _kind(top.group)
        if spans and (spans[-1][2] == kind or end - start < shortest):
            start, _, kind = spans.pop()
        spans.append((start, end, kind))
    return spans


def _kind(group: str) -> str:
    if group in _FOR_ANOTHER:
        return "waiting"
    return group if group in _COLORS else "other"
