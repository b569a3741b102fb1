"""Bars that are divided into parts."""

from __future__ import annotations

from collections.abc import Mapping

from flowtrain.pages.charts.spec import Row, Spec, axis, parts_legend, row_heights, rows_of, spec


def divided(
    bars: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    format: str = ",~f",
    limits: Mapping[str, float] | None = None,
    said: Mapping[str, str] | None = None,
    colors: Mapping[str, str] | None = None,
) -> Spec:
    """A bar for each row, divided into its parts; those of no length are left out.

    Args:
        bars: Lengths by row and part; all rows have the parts in one order.
        title: Title of the axis of the lengths.
        format: Format of lengths.
        limits: Length at which a line is drawn, by row.
        said: A text at the end of a bar, by row.
        colors: Colors by part; None takes those of the page.
    """
    rows: list[Row] = [
        {"bar": bar, "part": part, "length": length, "order": order}
        for bar, parts in bars.items()
        for order, (part, length) in enumerate(parts.items())
        if length > 0
    ]
    names = list(dict.fromkeys(row["part"] for row in sorted(rows, key=lambda row: row["order"])))
    ends = {bar: sum(parts.values()) for bar, parts in bars.items()}
    top = max([*ends.values(), *(limits or {}).values()]) * 1.02
    # Texts need space behind the longest bar.
    behind = 6 * max(map(len, (said or {"": ""}).values())) + 8
    scale = {"domain": [0, top], "range": [0, {"expr": f"width - {behind}"}], "nice": False}
    colored = {} if colors is None else {"range": [colors[name] for name in names]}
    length = {"field": "length", "type": "quantitative", "format": format}
    bar = {
        "mark": {"type": "bar", "clip": True},
        "encoding": {
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": names, **colored},
                "legend": parts_legend(names),
            },
            "order": {"field": "order"},
            "tooltip": [
                *({"field": name, "type": "nominal"} for name in ("bar", "part")),
                {**length, "title": title},
            ],
        },
    }
    texts = [{"bar": b, "length": ends[b], "said": text} for b, text in (said or {}).items()]
    text = {
        "data": {"values": texts},
        "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11},
        "encoding": {"text": {"field": "said"}},
    }
    limit = {
        "data": {"values": [{"bar": b, "length": end} for b, end in (limits or {}).items()]},
        "mark": {"type": "tick", "thickness": 2, "size": 24},
        "encoding": {"tooltip": [{**length, "title": "limit"}]},
    }
    return spec(
        rows,
        height=row_heights(len(bars), 28),
        encoding={
            "y": rows_of("bar", list(bars)),
            "x": axis(title, format, field="length", scale=scale),
        },
        layer=[bar, *([text] if said else []), *([limit] if limits else [])],
    )
