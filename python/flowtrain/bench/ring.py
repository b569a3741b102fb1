"""Descriptors per second through the ring, one by one and in runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flowtrain import progress
from flowtrain.bench.conditions import conditions
from flowtrain.bench.isolated import call

PAIRS = (1, 2, 4)
RUN = 16
MAX_DEVIATION = 0.25
"""Maximum deviation of a ping-pong from the median, as a share, of slices that are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A figure measured between two ping-pong runs of one word on the same cores."""

    value: float
    ping_before_ns: float
    ping_after_ns: float

    def pings(self) -> tuple[float, float]:
        return self.ping_before_ns, self.ping_after_ns


def flow(
    producers: int,
    consumers: int,
    batch: int,
    seconds: float,
    *,
    pauses: int = 1,
    shared: bool = False,
) -> Slice:
    """Descriptors of 64 bytes per second through the shipped ring, between processes.

    Producers own cells, write and publish them; consumers take, read and free them. A batch is
    published and taken as one run.

    Args:
        producers: Processes that publish, each from its own cells.
        consumers: Processes that take.
        batch: Descriptors per operation.
        seconds: Time of the slice.
        pauses: Pauses of a core between two polls of a waiting process; many let batches pile up.
        shared: Own each cell by a compare-and-swap, as in a pool, whose producers share all cells.

    Raises:
        ValueError: No producer, no consumer, or a batch that does not divide a producer's cells.
    """
    return _slice(
        "ring_flow",
        producers=producers,
        consumers=consumers,
        batch=batch,
        seconds=seconds,
        pauses=pauses,
        shared=shared,
    )


def round_trip(seconds: float) -> Slice:
    """Nanoseconds of a round trip of one descriptor, through one ring and back through another."""
    return _slice("ring_round_trip", seconds=seconds)


def hand_off(batch: int, seconds: float, *, records: bool) -> Slice:
    """Items per second that one process leases and publishes, and another gets and releases.

    Args:
        batch: Items per publish and per get.
        seconds: Time of the slice.
        records: Whether lanes record counters, times and events, as they normally do.

    Raises:
        ValueError: A batch that does not divide 1,024.
    """
    return _slice(
        "pool_flow", producers=1, consumers=1, batch=batch, seconds=seconds, records=records
    )


def _slice(function: str, **arguments: object) -> Slice:
    value, before, after = call(function, **arguments)
    return Slice(value=value, ping_before_ns=before, ping_after_ns=after)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparableSlices:
    """Slices measured at the same distance of the cores, which can change on a virtual machine."""

    values: dict[str, list[float | None]]
    """Values by measure and round; None for a slice that was dropped."""
    ping_ns: float
    """Median ping-pong of all slices."""

    @property
    def kept(self) -> dict[str, int]:
        return {name: len(_present(values)) for name, values in self.values.items()}

    @property
    def medians(self) -> dict[str, float | None]:
        return {name: _median(_present(values)) for name, values in self.values.items()}

    def ratio(self, above: str, below: str) -> float | None:
        """Median of the ratios within a round, which a drift of the values affects little."""
        pairs = zip(self.values[above], self.values[below], strict=True)
        return _median([a / b for a, b in pairs if a and b])


def comparable(measures: Mapping[str, Callable[[], Slice]], rounds: int) -> ComparableSlices:
    """Run every measure in every round, and drop slices whose ping-pong deviates from the median.

    Every other round runs in reverse order, since the order changes a figure by about a percent.
    """
    slices: dict[str, list[Slice]] = {name: [] for name in measures}
    for turn in range(rounds):
        for name in list(measures)[:: -1 if turn % 2 else 1]:
            slices[name].append(measures[name]())
    usual = statistics.median(
        ping for found in slices.values() for one in found for ping in one.pings()
    )
    return ComparableSlices(
        values={
            name: [
                one.value
                if all(abs(ping - usual) < MAX_DEVIATION * usual for ping in one.pings())
                else None
                for one in found
            ]
            for name, found in slices.items()
        },
        ping_ns=usual,
    )


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def run(seconds: float = 0.1, rounds: int = 5) -> Iterator[dict[str, Any]]:
    """Measure one, two and four producers with as many consumers, one by one and in runs.

    Args:
        seconds: Time of one slice.
        rounds: Slices per figure.

    Yields:
        Per case the medians in millions of descriptors per second, `single` and in `runs` of 16,
        over comparable slices, and their median ping-pong (`ping_ns`).
    """
    for pairs in progress.over("descriptors through a ring", PAIRS):
        found = comparable(
            {
                "single": partial(flow, pairs, pairs, 1, seconds),
                "runs": partial(flow, pairs, pairs, RUN, seconds),
            },
            rounds,
        )
        single, runs = (found.medians[name] for name in ("single", "runs"))
        yield {
            "bench": "ring",
            "producers": pairs,
            "consumers": pairs,
            "single": single and round(single / 1e6, 2),
            "runs": runs and round(runs / 1e6, 2),
            "gain": round(runs / single, 2) if single and runs else None,
            "ping_ns": round(found.ping_ns),
            "slices": min(found.kept.values()),
            **conditions(),
        }
