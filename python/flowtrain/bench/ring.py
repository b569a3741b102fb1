"""How many descriptors a second go through the ring, one by one and in runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flowtrain.bench.conditions import conditions
from flowtrain.bench.isolated import call

PAIRS = (1, 2, 4)
RUN = 16
SAME_CORES = 0.25
"""Ping-pongs of one core mode differ by less than this share of their median."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A figure, and a bare ping-pong of one word between the cores before and after it."""

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
    """Descriptors of 64 bytes a second through the shipped ring, between processes.

    Each process owns cells, writes, publishes, or takes, reads, frees; all of a batch, where it
    holds more than one, is published and taken as one run.

    Args:
        producers: Processes that publish, each from cells of its own.
        consumers: Processes that take.
        batch: Descriptors at a time.
        seconds: Time of the slice.
        pauses: Pauses of a core between two looks of who waits; many let batches pile up.
        shared: Whether a compare-and-swap owns each cell, as in a pool, whose producers share them.

    Raises:
        ValueError: No producer, no consumer, or a batch that does not divide a producer's cells.
    """
    return _slice(
        "_ring_flow",
        producers=producers,
        consumers=consumers,
        batch=batch,
        seconds=seconds,
        pauses=pauses,
        shared=shared,
    )


def round_trip(seconds: float) -> Slice:
    """Nanoseconds of one descriptor there through one ring and back through another."""
    return _slice("_ring_round_trip", seconds=seconds)


def hand_off(batch: int, seconds: float, *, records: bool) -> Slice:
    """Items a second that one process leases and publishes, and another gets and releases.

    Args:
        batch: Items that are published and got together.
        seconds: Time of the slice.
        records: As shipped; without counts, times and events of what the lanes did, if False.

    Raises:
        ValueError: A batch that does not divide 1,024.
    """
    return _slice(
        "_pool_flow", producers=1, consumers=1, batch=batch, seconds=seconds, records=records
    )


def _slice(function: str, **arguments: object) -> Slice:
    value, before, after = call(function, **arguments)
    return Slice(value=value, ping_before_ns=before, ping_after_ns=after)


@dataclass(frozen=True, kw_only=True, slots=True)
class InOneMode:
    """Medians of the slices that saw the cores equally near; cores of virtual machines move."""

    values: dict[str, list[float | None]]
    """By round; None for a slice that was not kept."""
    ping_ns: float
    """Median ping-pong: the mode that most slices saw."""

    @property
    def kept(self) -> dict[str, int]:
        return {name: len(_there(values)) for name, values in self.values.items()}

    @property
    def medians(self) -> dict[str, float | None]:
        return {name: _median(_there(values)) for name, values in self.values.items()}

    def ratio(self, above: str, below: str) -> float | None:
        """Median of the ratios within a round: nearer than medians of values that drift."""
        pairs = zip(self.values[above], self.values[below], strict=True)
        return _median([a / b for a, b in pairs if a and b])


def in_one_mode(measures: Mapping[str, Callable[[], Slice]], rounds: int) -> InOneMode:
    """Every measure in every round, there and back again; then what is comparable of it.

    Who comes second is a percent slower or faster: in every other round it comes first.
    """
    slices: dict[str, list[Slice]] = {name: [] for name in measures}
    for turn in range(rounds):
        for name in list(measures)[:: -1 if turn % 2 else 1]:
            slices[name].append(measures[name]())
    usual = statistics.median(
        ping for found in slices.values() for one in found for ping in one.pings()
    )
    return InOneMode(
        values={
            name: [
                one.value
                if all(abs(ping - usual) < SAME_CORES * usual for ping in one.pings())
                else None
                for one in found
            ]
            for name, found in slices.items()
        },
        ping_ns=usual,
    )


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def run(seconds: float = 0.1, rounds: int = 5) -> Iterator[dict[str, Any]]:
    """Measure one, two and four producers with as many consumers, one by one and in runs.

    Args:
        seconds: Time of one slice.
        rounds: Slices of each way, in turn.

    Yields:
        Per case the medians in millions of descriptors a second, `single` and in `runs` of 16,
        of the slices whose cores were as near to each other as in most (`ping_ns`).
    """
    for pairs in PAIRS:
        found = in_one_mode(
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
