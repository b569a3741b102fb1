"""Tables of a pool: segments, rings, and the traffic of its lanes."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flowtrain.observe.traffic import STAGES, LaneTraffic, traffic
from flowtrain_core.snapshots import PoolSnapshot

_COLORS = {"alive": "green", "dead": "bold red", "left": "dim"}


def render(before: PoolSnapshot, now: PoolSnapshot) -> RenderableType:
    """Screen of `flowtrain top`, with rates over the time between two snapshots."""
    lanes = traffic(before, now)
    alive = sum(lane.state == "alive" for lane in lanes)
    dead = sum(lane.state == "dead" for lane in lanes)
    title = Text(f"pool {now['name']}: {alive} lanes alive, {dead} dead", style="bold")
    return Group(title, _segments(now), _rings(now), _lanes(lanes))


def _segments(now: PoolSnapshot) -> Table:
    table = Table("segment", "owner", "tier", "slab", "in use", "", box=None, title_justify="left")
    for segment in now["segments"]:
        for size in segment["classes"] or [{"slab_bytes": 0, "slabs": 0, "in_use_slabs": 0}]:
            table.add_row(
                str(segment["id"]),
                Text(segment["owner"]),
                segment["tier"],
                bytes_text(size["slab_bytes"]),
                f"{size['in_use_slabs']} of {size['slabs']}",
                ProgressBar(max(size["slabs"], 1), size["in_use_slabs"], width=24),
            )
    return table


def _rings(now: PoolSnapshot) -> Table:
    table = Table("ring", "waiting", "slab bytes", box=None)
    for ring in now["rings"]:
        table.add_row(Text(ring["name"]), str(ring["items"]), bytes_text(ring["bytes"]))
    return table


def _lanes(lanes: list[LaneTraffic]) -> Table:
    heads = ("lane", "label", "role", "ring", "pid", "state", "items/s", "bytes/s", "spilled")
    table = Table(*heads, box=None)
    for stage in STAGES:
        table.add_column(f"{stage.replace('_', ' ')} p50/p99")
    for lane in sorted(lanes, key=lambda lane: (lane.state != "alive", lane.index)):
        table.add_row(
            str(lane.index),
            Text(lane.label),
            lane.role,
            Text(lane.ring or ""),
            str(lane.pid),
            Text(lane.state, style=_COLORS.get(lane.state, "")),
            f"{lane.items_per_s:,.0f}" if lane.ring else "",
            bytes_text(lane.bytes_per_s) if lane.role == "producer" else "",
            str(lane.spilled) if lane.role == "producer" else "",
            *(
                f"{_time_text(lane.p50_ns[stage])}/{_time_text(lane.p99_ns[stage])}"
                if stage in lane.p50_ns
                else ""
                for stage in STAGES
            ),
        )
    return table


def bytes_text(count: float) -> str:
    """A number of bytes, rounded, in a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _time_text(ns: float | None) -> str:
    if ns is None:
        return "-"
    for unit, size in (("ns", 1e3), ("us", 1e6), ("ms", 1e9)):
        if ns < size:
            return f"{ns / size * 1e3:.0f} {unit}"
    return f"{ns / 1e9:.0f} s"
