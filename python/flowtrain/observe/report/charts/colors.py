"""Colors of the groups of activity."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.observe.report.groups import GROUPS
from flowtrain.pages.charts.spec import Spec, columns

# Passes in blues and greens, what joins the ranks in greys, waits in reds and yellows: they are
# told apart in light and dark, and by the color-blind.
COLORS = {
    "encoder passes": "#1f78b4",
    "backbone passes": "#33a089",
    "optimizer": "#7b6fd0",
    "gradient sums": "#8d99a6",
    "records": "#b3bcc6",
    "other work": "#6b7480",
    "wait: record": "#e4572e",
    "wait: free slab": "#a61e4d",
    "wait: gradient sum": "#f28e2b",
    "wait: reports": "#f2c14e",
    "wait: planner": "#d98cb3",
    "wait: other": "#c9a27e",
}
assert tuple(COLORS) == GROUPS


def by_group(present: Sequence[str]) -> Spec:
    """Encoding of the color by group of activity; the legend has the groups that are present."""
    shown = [group for group in GROUPS if group in present]
    return {
        "field": "group",
        "type": "nominal",
        "scale": {"domain": shown, "range": [COLORS[group] for group in shown]},
        "legend": {
            "title": None,
            "orient": "bottom",
            "columns": columns(125, most=6),
        },
    }
