"""Histograms of lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy
from numpy.typing import NDArray

from flowtrain.pages.charts.spec import Row, Spec, axis, spec

_BINS = 40


def histogram(
    lengths: Mapping[str, NDArray[numpy.int64]], *, title: str, limit: int | None = None
) -> Spec:
    """Shares of samples or rows by their tokens.

    Args:
        lengths: Tokens of each, by what they are of.
        title: Title of the axis of the tokens.
        limit: Tokens at which a line is drawn.
    """
    top = max(limit or 0, *(int(each.max()) for each in lengths.values()))
    edges = numpy.unique(numpy.linspace(0, top + 1, _BINS + 1).astype(int))
    rows: list[Row] = [
        {"what": what, "from": first, "to": end, "share": count / len(each), "count": count}
        for what, each in lengths.items()
        for count, first, end in zip(
            numpy.histogram(each, edges)[0].tolist(),
            edges[:-1].tolist(),
            edges[1:].tolist(),
            strict=True,
        )
        if count
    ]
    bars = {
        "mark": {"type": "bar", "opacity": 0.75 if len(lengths) > 1 else 1.0, "binSpacing": 0.5},
        "encoding": {
            "x": {
                **axis(title, "~s", field="from", bin={"binned": True}),
                "scale": {"domain": [0, top + 1], "nice": False},
            },
            "x2": {"field": "to"},
            "y": {
                "field": "share",
                "type": "quantitative",
                "stack": None,
                "title": "share",
                "axis": {"format": "%", "tickCount": 4},
            },
            "color": {
                "field": "what",
                "type": "nominal",
                "sort": list(lengths),
                "legend": {"title": None, "orient": "top"} if len(lengths) > 1 else None,
            },
            "tooltip": [
                {"field": "what", "type": "nominal"},
                *({"field": name, "type": "quantitative"} for name in ("from", "to", "count")),
                {"field": "share", "type": "quantitative", "format": ".1%"},
            ],
        },
    }
    rule = {
        "data": {"values": [{"limit": limit}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
        "encoding": {"x": {"field": "limit", "type": "quantitative"}},
    }
    return spec(rows, height=180, layer=[bars, *([] if limit is None else [rule])])
