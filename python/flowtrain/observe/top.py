"""Tables of a pool: segments, rings, and the traffic of its lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flowtrain.observe.traffic import STAGES, LaneTraffic, traffic
from flowtrain_core.snapshots import ClassSnapshot, PoolSnapshot

_COLORS = {"alive": "green", "dead": "bold red", "left": "dim"}


def render(before: PoolSnapshot, now: PoolSnapshot) -> RenderableType:
    """Screen of `flowtrain top`, with rates over the time between two snapshots."""
    lanes = traffic(before, now)
    alive = sum(lane.state == "alive" for lane in lanes)
    dead = sum(lane.state == "dead" for lane in lanes)
    lanes.sort(key=lambda lane: (lane.state != "alive", lane.index))
    title = Text(f"pool {now['name']}: {alive} lanes alive, {dead} dead", style="bold")
    return Group(title, _segments(now), _rings(now), _lanes(lanes), _waits(lanes))


def _segments(now: PoolSnapshot) -> Table:
    table = Table("segment", "owner", "tier", "slab", "in use", "", box=None, title_justify="left")
    for segment in now["segments"]:
        for slab, slabs, used in _folded(segment["classes"]):
            table.add_row(
                str(segment["id"]),
                Text(segment["owner"]),
                segment["tier"],
                slab,
                f"{used} of {slabs}",
                ProgressBar(max(slabs, 1), used, width=24),
            )
    return table


def _folded(classes: Sequence[ClassSnapshot]) -> Iterator[tuple[str, int, int]]:
    """Size, slabs and slabs in use of each class; neighbours with one slab each are one row."""
    if not classes:
        yield bytes_text(0), 0, 0
    for single, group in groupby(classes, key=lambda each: each["slabs"] == 1):
        rows = list(group)
        for same in [rows] if single else ([row] for row in rows):
            sizes = [bytes_text(row["slab_bytes"]) for row in (same[0], same[-1])]
            yield (
                sizes[0] if len(same) == 1 else f"{sizes[0]} to {sizes[1]}",
                sum(row["slabs"] for row in same),
                sum(row["in_use_slabs"] for row in same),
            )


def _rings(now: PoolSnapshot) -> Table:
    table = Table("ring", "waiting", "bytes", box=None)
    for ring in now["rings"]:
        table.add_row(Text(ring["name"]), str(ring["items"]), bytes_text(ring["bytes"]))
    return table


def _lanes(lanes: Sequence[LaneTraffic]) -> Table:
    table = Table(box=None)
    for head, cut in (
        *(("lane", False), ("label", True), ("role", False), ("ring", True), ("pid", False)),
        *(("state", False), ("items/s", False), ("bytes/s", False)),
    ):
        # On a narrow terminal, names are folded and numbers stay whole.
        table.add_column(head, no_wrap=not cut, overflow="fold")
    for lane in lanes:
        table.add_row(
            str(lane.index),
            Text(lane.label),
            lane.role,
            Text(lane.ring or ""),
            str(lane.pid),
            Text(lane.state, style=_COLORS.get(lane.state, "")),
            f"{lane.items_per_s:,.0f}" if lane.ring else "",
            bytes_text(lane.bytes_per_s) if lane.role == "producer" else "",
        )
    return table


def _waits(lanes: Sequence[LaneTraffic]) -> Table:
    table = Table("lane", *(f"{stage.replace('_', ' ')} p50/p99" for stage in STAGES), box=None)
    table.add_column("spilled")
    for lane in lanes:
        if lane.ring is None:
            continue
        table.add_row(
            str(lane.index),
            *(
                f"{_time_text(lane.p50_ns[stage])}/{_time_text(lane.p99_ns[stage])}"
                if stage in lane.p50_ns
                else ""
                for stage in STAGES
            ),
            str(lane.spilled) if lane.role == "producer" else "",
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
