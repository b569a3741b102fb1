"""Values as dots, in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowtrain.pages.charts.spec import Row, Spec, axis, parts_legend, row_heights, rows_of, spec


@dataclass(frozen=True, slots=True)
class Dot:
    """A value in a row."""

    row: str
    kind: str
    """What is shown, which the color tells."""
    value: float
    said: str = ""
    """What more there is to say of it."""


def dots(
    points: Sequence[Dot],
    title: str,
    *,
    format: str = ",~f",
    log: bool = False,
    limit: float | None = None,
) -> Spec:
    """Values of some kinds in rows.

    Args:
        points: The values; on a logarithmic axis greater than 0.
        title: Title of the axis of the values.
        format: Format of values.
        log: Whether the axis is logarithmic.
        limit: Value at which a line is drawn.
    """
    rows: list[Row] = [
        {"row": each.row, "kind": each.kind, "value": each.value, "said": each.said}
        for each in points
    ]
    names = list(dict.fromkeys(each.row for each in points))
    kinds = list(dict.fromkeys(each.kind for each in points))
    scale = {"type": "log", "nice": True} if log else {"nice": True, "zero": True}
    x = {"type": "quantitative"}
    encoding = {
        "color": {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": kinds},
            "legend": parts_legend(kinds),
        },
        "tooltip": [
            *({"field": name, "type": "nominal"} for name in ("row", "kind")),
            {"field": "value", **x, "format": format},
            *([{"field": "said", "type": "nominal"}] if any(each.said for each in points) else []),
        ],
    }
    mark = {"type": "point", "filled": True, "size": 60, "opacity": 0.85}
    line = {
        "data": {"values": [{"value": limit}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
        "encoding": {"x": {"field": "value", **x}},
    }
    return spec(
        rows,
        height=row_heights(len(names), 26),
        layer=[
            {
                "mark": mark,
                "encoding": {
                    "y": rows_of("row", names),
                    "x": axis(title, format, field="value", scale=scale),
                    **encoding,
                },
            },
            *([] if limit is None else [line]),
        ],
    )
