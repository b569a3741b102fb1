"""The style of the pictures: colors that are told apart on white, and font sizes."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

WIDTH = 800
TEXT, SOFT, LINE = "#1c2127", "#5b6570", "#dfe3e8"
ENCODER, BACKBONE, OTHER, WAITING = "#2f81c7", "#33a089", "#aab4be", "#e4572e"
# Letters of the reader may be wider than those with which the picture is laid out.
_BORDER = {"left": 22, "right": 30, "top": 12, "bottom": 12}


def picture(title: str, panels: list[Spec]) -> Spec:
    """Panels below each other, on white: a page may be dark."""
    return {
        "vconcat": panels,
        "spacing": 14,
        "background": "white",
        "padding": _BORDER,
        "title": {"text": title, "anchor": "start", "fontSize": 18, "offset": 10, "color": TEXT},
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "config": {
            "aria": False,  # A fifth of the size.
            "font": "Helvetica, Arial, sans-serif",
            "view": {"stroke": None},
            "axis": {
                "labelFontSize": 13,
                "titleFontSize": 13,
                "titleFontWeight": "normal",
                "labelColor": TEXT,
                "titleColor": SOFT,
                "domainColor": LINE,
                "tickColor": LINE,
                "grid": False,
                "labelLimit": 130,
            },
            "title": {"fontSize": 14, "anchor": "start", "color": TEXT, "frame": "group"},
            "legend": {
                "labelFontSize": 13,
                "labelColor": TEXT,
                "title": None,
                "symbolType": "square",
                "symbolSize": 140,
                "labelLimit": 400,
                "columnPadding": 44,
            },
        },
    }
