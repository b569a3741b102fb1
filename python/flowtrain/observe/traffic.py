"""Rates from two snapshots of a pool, and percentiles from histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from flowtrain_core.snapshots import HistogramCounts, PoolSnapshot

Stage = Literal["alloc_wait", "transfer", "queue_wait", "use"]
STAGES: tuple[Stage, ...] = ("alloc_wait", "transfer", "queue_wait", "use")


def percentile_ns(histogram: HistogramCounts, share: float) -> float | None:
    """Upper bound in ns of the bucket that holds the percentile; None if there are no counts.

    Args:
        histogram: Counts by duration.
        share: Percentile, from 0 to 1.
    """
    seen = list(accumulate(histogram["counts"]))
    if seen[-1] == 0:
        return None
    return float(2 << bisect_left(seen, share * seen[-1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneTraffic:
    """Traffic of one lane between two snapshots."""

    index: int
    label: str
    role: str
    ring: str | None
    pid: int
    state: str
    items_per_s: float
    """Published or taken."""
    bytes_per_s: float
    """Published; 0 for a consumer."""
    spilled: int
    """Spilled items since the pool was made."""
    p50_ns: dict[Stage, float | None]
    """Per stage of this role, over the time between the snapshots."""
    p99_ns: dict[Stage, float | None]


def traffic(before: PoolSnapshot, now: PoolSnapshot) -> list[LaneTraffic]:
    """Traffic of every lane between two snapshots of the same pool name.

    If the pool was recreated in between, its counters start from zero.
    """
    seconds = max(now["time_ns"] - before["time_ns"], 1) / 1e9
    same = before["nonce"] == now["nonce"]
    old = {lane["index"]: lane for lane in before["lanes"]} if same else {}
    out = []
    for lane in now["lanes"]:
        was = old.get(lane["index"])
        items = lane["items_published"] + lane["items_taken"]
        data = lane["bytes_published"]
        stages = {stage: lane[stage] for stage in _stages(lane["role"])}
        if was is not None:
            items -= was["items_published"] + was["items_taken"]
            data -= was["bytes_published"]
            stages = {stage: _minus(each, was[stage]) for stage, each in stages.items()}
        out.append(
            LaneTraffic(
                index=lane["index"],
                label=lane["label"],
                role=lane["role"],
                ring=lane["ring"],
                pid=lane["pid"],
                state=lane["state"],
                items_per_s=items / seconds,
                bytes_per_s=data / seconds,
                spilled=lane["items_spilled"],
                p50_ns={stage: percentile_ns(each, 0.5) for stage, each in stages.items()},
                p99_ns={stage: percentile_ns(each, 0.99) for stage, each in stages.items()},
            )
        )
    return out


def _stages(role: str) -> Sequence[Stage]:
    return {"producer": STAGES[:2], "consumer": STAGES[2:]}.get(role, ())


def _minus(now: HistogramCounts, before: HistogramCounts) -> HistogramCounts:
    return {
        "counts": [a - b for a, b in zip(now["counts"], before["counts"], strict=True)],
        "sum_ns": now["sum_ns"] - before["sum_ns"],
    }
