"""Payloads between two processes by the paths between hosts, beside bare send and receive."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from flowtrain import progress
from flowtrain.bench import ucx_perftest
from flowtrain.bench.conditions import conditions
from flowtrain.bench.isolated import call
from flowtrain.hosts.ucx import copies_in_packages

SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
ROUNDS = 15
_MIB = 1 << 20
# Payloads under way, and their bytes at most.
_WINDOW, _WINDOW_BYTES = 8, 64 << 20

Path = Literal["tcp", "ucx"]


def run(
    path: Path,
    sizes: Sequence[int] = SIZES,
    seconds: float = 0.5,
    rounds: int = ROUNDS,
    ucx: str = "",
) -> Iterator[dict[str, Any]]:
    """Measure each size over the loopback interface, in rounds that measure everything once.

    Args:
        path: Path between the processes.
        sizes: Bytes of a payload.
        seconds: Approximate time per figure and round.
        rounds: Rounds per size.
        ucx: Path of `libucp`; by default it is searched.

    Yields:
        Per size the median rates in GB/s (1e9 bytes): `place`, with up to 8 payloads under way, or
        64 MiB of them; `pair`, the same by bare send and receive; `perftest`, by `ucx_perftest -t
        ucp_am_bw -E sleep` of the same copy of UCX with the same settings, if there is one; and
        `memcpy`. `vs_*` is the median of the ratios within a round, and `vs_*_95` its 95 %
        interval. `latency_us` and `pair_latency_us` are from a payload to its acknowledgement, one
        at a time. Last the figures of 1 MiB and of the smallest size, and how often the receiver
        has registered memory.

    Raises:
        RuntimeError: UCX is not found, or a measurement failed.
    """
    last: dict[str, Any] = {"bench": "pool", "path": path}
    for item_bytes in progress.over(f"payloads by {path}", sizes):
        found = _Rounds(path, item_bytes, seconds, ucx)
        for turn in range(rounds):
            found.measure(reverse=turn % 2 == 1)
        row = found.row()
        yield {"bench": "pool", "path": path, "item_bytes": item_bytes} | row | conditions()
        last["registrations"] = found.facts["registrations"]
        if path == "ucx":
            last["ucx"] = found.facts["version"]
        if item_bytes == _MIB:
            last |= {f"{key}_1MiB": value for key, value in row.items() if key.startswith("vs_")}
        if item_bytes == min(sizes):
            extra = row["latency_us"] - row["pair_latency_us"]
            last[f"extra_latency_us_{item_bytes}B"] = round(extra, 2)
    yield last | conditions()


class _Rounds:
    """Figures of one size, by what is measured and round."""

    def __init__(self, path: Path, item_bytes: int, seconds: float, ucx: str) -> None:
        self.item_bytes = item_bytes
        self.facts: dict[str, Any] = {}
        self._path = path
        self._seconds = seconds
        self._ucx = ucx
        self._others = copies_in_packages() if path == "ucx" else []
        self._rates: dict[str, list[float]] = {}
        self._latencies: dict[str, list[float]] = {}
        # Opens UCX once, so that the first round is as any other.
        self.facts = self._flow(path, _WINDOW, 0.01)
        self._perftest = ucx_perftest.find(self.facts["library"]) if path == "ucx" else None

    def measure(self, *, reverse: bool) -> None:
        steps = [self._place, self._pair, self._peer, self._copy]
        for step in reversed(steps) if reverse else steps:
            step()

    def row(self) -> dict[str, Any]:
        """Medians, and ratios to `place`."""
        place = self._rates["place"]
        row: dict[str, Any] = {name: _short(median / 1e9) for name, median in self._medians()}
        for name, key in (("pair", "vs_pair"), ("perftest", "vs_ucx_perftest")):
            if name in self._rates:
                ratios = [ours / peer for ours, peer in zip(place, self._rates[name], strict=True)]
                row[key] = round(statistics.median(ratios), 3)
                row[f"{key}_95"] = [round(bound, 3) for bound in median_interval(ratios)]
        for name, times in self._latencies.items():
            row[name] = round(statistics.median(times), 2)
        return row

    def _medians(self) -> list[tuple[str, float]]:
        return [(name, statistics.median(rates)) for name, rates in self._rates.items()]

    def _place(self) -> None:
        self._measure_flow(self._path, "place", "latency_us")

    def _pair(self) -> None:
        self._measure_flow("pair", "pair", "pair_latency_us")

    def _measure_flow(self, path: str, rate: str, latency: str) -> None:
        window = max(2, min(_WINDOW, _WINDOW_BYTES // self.item_bytes))
        self._add(self._rates, rate, self._flow(path, window, self._seconds)["bytes_per_s"])
        one = self._flow(path, 1, self._seconds / 2)
        self._add(self._latencies, latency, one["round_trip_us"])

    def _peer(self) -> None:
        if self._perftest is not None:
            count = int(self._seconds * self._rates.get("perftest", [5e8])[-1] / self.item_bytes)
            rate = ucx_perftest.am_bytes_per_s(
                self._perftest,
                self.facts["library"],
                self.facts["settings"],
                self.item_bytes,
                min(max(count, 8), 100_000),
            )
            self._add(self._rates, "perftest", rate)

    def _copy(self) -> None:
        seconds = self._seconds / 4
        rate = call("memcpy_bytes_per_s", bytes=self.item_bytes, seconds=seconds)
        self._add(self._rates, "memcpy", rate)

    def _flow(self, path: str, window: int, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = call(
            "placements",
            path=path,
            library=self._ucx,
            others=self._others,
            settings={},
            bytes=self.item_bytes,
            window=window,
            seconds=seconds,
        )
        return found

    @staticmethod
    def _add(figures: dict[str, list[float]], name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Values between which the median of the population lies with a confidence of 95 %.

    Assumes nothing of their distribution. Fewer than six values give less confidence.

    Source: the binomial distribution of the number of values below the median.
    """
    ordered = sorted(values)
    tail, first = 0.0, 0
    for below in range((len(ordered) + 1) // 2):
        tail += math.comb(len(ordered), below) / 2 ** len(ordered)
        if tail > 0.025:
            break
        first = below
    return ordered[first], ordered[-1 - first]


def _short(value: float) -> float:
    return float(f"{value:.3g}")
