"""Plans as points: GPUs against tokens per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowtrain.pages.charts.spec import LINE_LEGEND, Row, Spec, axis, spec
from flowtrain.plan.report.words import mfu, plan_line, seconds
from flowtrain.plan.result import Plan


def speeds(plans: Mapping[str, Sequence[Plan]], *, best: Plan) -> Spec:
    """Tokens per second of plans by their GPUs, with the speed per GPU of the best as a line.

    Args:
        plans: Plans by what they are.
        best: The best plan.
    """
    rows: list[Row] = [
        {
            "kind": kind,
            "gpus": plan.gpus,
            "speed": round(plan.tokens_per_s),
            "step": seconds(plan.best_s),
            "mfu": mfu(plan),
            "plan": plan_line(plan),
        }
        for kind, found in plans.items()
        for plan in found
    ]
    most = max(row["gpus"] for row in rows) * 1.05
    per_gpu = best.tokens_per_s / best.gpus
    line = {
        "data": {"values": [{"gpus": gpus, "speed": gpus * per_gpu} for gpus in (0, most)]},
        "mark": {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "color": "gray"},
    }
    points = {
        "mark": {"type": "point", "filled": True, "opacity": 0.8},
        "encoding": {
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": {"domain": list(plans)},
                "legend": {**LINE_LEGEND, "symbolType": "circle"},
            },
            "size": {
                "condition": {"test": f"datum.kind === '{next(iter(plans))}'", "value": 160},
                "value": 60,
            },
            "tooltip": [
                {"field": name, "type": "nominal"} for name in ("kind", "plan", "step", "mfu")
            ]
            + [{"field": name, "type": "quantitative"} for name in ("gpus", "speed")],
        },
    }
    y = {
        "field": "speed",
        "type": "quantitative",
        "title": "tokens/s",
        "axis": {"format": "~s", "tickCount": 5},
    }
    x = axis("GPUs", "~s", field="gpus", scale={"domain": [0, most], "nice": False})
    return spec(rows, height=260, encoding={"x": x, "y": y}, layer=[line, points])
