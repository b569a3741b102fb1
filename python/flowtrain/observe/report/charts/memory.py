"""Charts of the memory of ranks."""

from __future__ import annotations

from collections.abc import Mapping

from flowtrain.pages.charts.spec import LINE_LEGEND, Row, Spec, axis, rows_of, spec


def memory_of_ranks(sizes: Mapping[str, Mapping[str, int]]) -> Spec:
    """A bar for each rank and kind of memory, the larger ones behind.

    Args:
        sizes: Bytes by rank and kind; each kind is a part of the one before.
    """
    rows: list[Row] = [
        {"rank": rank, "kind": kind, "bytes": count}
        for rank, kinds in sizes.items()
        for kind, count in kinds.items()
    ]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    encoding = {
        "y": rows_of("rank", list(sizes)),
        "x": {**axis("bytes", "~s", field="bytes"), "stack": None},
        "color": {
            "field": "kind",
            "type": "nominal",
            "sort": kinds,
            "legend": {**LINE_LEGEND, "symbolType": "square"},
        },
        "tooltip": [
            *({"field": name, "type": "nominal"} for name in ("rank", "kind")),
            {"field": "bytes", "type": "quantitative", "format": ".4~s"},
        ],
    }
    height = len(sizes) * (26 if len(sizes) <= 16 else 16)
    return spec(rows, height=height, mark={"type": "bar", "clip": True}, encoding=encoding)
