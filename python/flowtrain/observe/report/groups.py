"""Kinds of activity in groups, few enough for the colors of a chart."""

from __future__ import annotations

from collections.abc import Mapping

from flowtrain.events import WORK

_GROUPS = {
    "encode": "encoder passes",
    "backbone": "backbone passes",
    "optimizer": "optimizer",
    "reduce": "gradient sums",
    "send": "records",
    "receive": "records",
    "wait_receive": "wait: record",
    "wait_send": "wait: free slab",
    "wait_reduce": "wait: gradient sum",
    "wait_exchange": "wait: reports",
    "wait_load": "wait: planner",
    "wait_plan": "wait: planner",
}
_WORK, _WAIT = "other work", "wait: other"
GROUPS = (
    *("encoder passes", "backbone passes", "optimizer"),
    *("gradient sums", "records", _WORK),
    *("wait: record", "wait: free slab", "wait: gradient sum", "wait: reports", "wait: planner"),
    _WAIT,
)
"""All groups, in the order in which they are stacked: passes, what joins the ranks, waits."""


def group_of(activity: str) -> str:
    """The group of a kind of activity of `flowtrain.events`."""
    return _GROUPS.get(activity) or (_WAIT if activity.startswith("wait_") else _WORK)


BUSY = tuple(group_of(activity) for activity in WORK)
"""Groups in which a rank does what a plain loop does, too."""


def grouped(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by group, of seconds by kind of activity."""
    found = dict.fromkeys(GROUPS, 0.0)
    for activity, spent in seconds.items():
        found[group_of(activity)] += spent
    return found
