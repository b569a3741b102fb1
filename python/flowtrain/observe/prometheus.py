"""Prometheus metrics of a pool, and of the ranks of its run, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from flowtrain.events import read_memory
from flowtrain.observe.traffic import STAGES
from flowtrain_core import inspect
from flowtrain_core.snapshots import HistogramCounts, LaneSnapshot, SegmentSnapshot

COUNTERS = {
    "items_published": "Items published",
    "bytes_published": "Bytes published",
    "items_taken": "Items taken",
    "items_released": "Items released",
    "items_redelivered": "Items delivered again, since their reader died or did not release them",
    "items_lost": "Items lost because the owner of their memory died",
    "items_spilled": "Items that did not fit into the first segment of their producer's tiers",
    "bytes_spilled": "Bytes of spilled items",
}


class PoolCollector(Collector):
    """Reads a pool at every scrape. It takes no lane, and may outlive the pool's processes.

    Series are labelled by lane number. They never fall, even when a lane is reused;
    `flowtrain_lane_info` describes the current owner of the lane.

    Args:
        name: Name of the pool.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics.

        Raises:
            PoolNotFound: The pool does not exist any more.
        """
        pool = inspect(self._name)
        yield from self._segments(pool["segments"])
        waiting = GaugeMetricFamily(
            "flowtrain_ring_items", "Items waiting in a ring", labels=("pool", "ring")
        )
        for ring in pool["rings"]:
            waiting.add_metric((self._name, ring["name"]), ring["items"])
        yield waiting
        yield from self._lanes(pool["lanes"])

    def _segments(self, segments: list[SegmentSnapshot]) -> Iterator[Metric]:
        labels = ("pool", "segment", "owner", "tier")
        size = GaugeMetricFamily("flowtrain_segment_bytes", "Size of a segment", labels=labels)
        used = GaugeMetricFamily(
            "flowtrain_segment_used_bytes", "Bytes of slabs in use", labels=labels
        )
        unused = GaugeMetricFamily(
            "flowtrain_segment_unused_bytes",
            "Bytes of slabs in use beyond their items",
            labels=labels,
        )
        for each in segments:
            values = (self._name, str(each["id"]), each["owner"], each["tier"])
            size.add_metric(values, each["bytes"])
            used.add_metric(values, each["in_use_bytes"])
            unused.add_metric(values, each["unused_bytes"])
        yield size
        yield used
        yield unused

    def _lanes(self, lanes: list[LaneSnapshot]) -> Iterator[Metric]:
        info = InfoMetricFamily(
            "flowtrain_lane", "Current owner of a lane", labels=("pool", "lane")
        )
        for lane in lanes:
            info.add_metric(
                (self._name, str(lane["index"])),
                {
                    "label": lane["label"],
                    "role": lane["role"],
                    "ring": lane["ring"] or "",
                    "state": lane["state"],
                },
            )
        yield info
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"flowtrain_{name}", text, labels=("pool", "lane"))
            for lane in lanes:  # Pool handles too: they redeliver items of dead lanes.
                counter.add_metric((self._name, str(lane["index"])), lane[name])  # type: ignore[literal-required]
            yield counter
        ports = [lane for lane in lanes if lane["ring"] is not None]
        for stage in STAGES:
            family = HistogramMetricFamily(
                f"flowtrain_{stage}_seconds", f"Time of {stage}", labels=("pool", "lane")
            )
            for lane in ports:
                histogram = lane[stage]
                family.add_metric(
                    (self._name, str(lane["index"])),
                    buckets=_buckets(histogram),
                    sum_value=histogram["sum_ns"] / 1e9,
                )
            yield family


class RanksCollector(Collector):
    """Reads the memory of the ranks of a run at every scrape, from their events.

    Args:
        run: Folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics.

        Raises:
            EventsError: A file of events is damaged.
        """
        memory = GaugeMetricFamily(
            "flowtrain_rank_memory_bytes",
            "Memory of a rank at the end of its last step, by kind",
            labels=("rank", "kind"),
        )
        for rank, found in read_memory(self._run).items():
            for kind, size in found.items():
                memory.add_metric((rank, kind), size)
        yield memory


def _buckets(histogram: HistogramCounts) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound in seconds; the last bound is +Inf."""
    out, seen = [], 0
    for bucket, count in enumerate(histogram["counts"]):
        seen += count
        out.append((str((2 << bucket) / 1e9), float(seen)))
    out[-1] = ("+Inf", float(seen))
    return out
