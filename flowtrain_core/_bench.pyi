"""Measurements and fault injection for `flowtrain bench`; `flowtrain.bench` documents them.

They pin the calling thread, or fork, for which the process may have only one thread. A figure comes
as three numbers: the figure, and the times in ns of a ping-pong before and after it.
"""

from collections.abc import Callable
from typing import Any

def ring_flow(
    *, producers: int, consumers: int, batch: int, seconds: float, pauses: int, shared: bool
) -> tuple[float, float, float]:
    """Descriptors per second through a ring."""

def ring_round_trip(*, seconds: float) -> tuple[float, float, float]:
    """Nanoseconds of a descriptor's way through one ring and back through another."""

def pool_flow(
    *, producers: int, consumers: int, batch: int, seconds: float, records: bool
) -> tuple[float, float, float]:
    """Items per second through a pool; `records` as lanes normally record counters and events."""

def slab_pairs_ns(
    *,
    classes: int,
    slabs: int,
    fill: float,
    processes: int,
    by_consumer: bool,
    pairs: int,
    slices: int,
) -> list[float]:
    """Nanoseconds of a free and an allocation: a mean for each slice of each process."""

def reclaim_times_ms(kills: int) -> list[float]:
    """Milliseconds from the kill of a process that holds a slab until the slab is free, sorted."""

def idle_cpu_percent(seconds: float) -> float:
    """Share of a core that a process uses while it waits for an item."""

def inject_faults(
    *, kills: int, stops: int, max_s: float, seed: int, tight: bool, without: str
) -> dict[str, Any]:
    """Kills and stops participants of a ring, and counts the faults that follow."""

def receive_placements(
    *,
    path: str,
    host: str,
    ticket: str,
    library: str,
    others: list[str],
    bytes: int,
    window: int,
    tell: Callable[[dict[str, Any]], object],
) -> None:
    """Listen at an address of this host, tell where, and receive until the sender has gone."""

def send_placements(
    *,
    path: str,
    host: str,
    ticket: str,
    library: str,
    others: list[str],
    bytes: int,
    window: int,
    address: str,
    seconds: float,
) -> dict[str, Any]:
    """A flow of payloads to a receiver: rate, and time to the acknowledgement."""

def find_ucx(*, host: str, library: str, others: list[str]) -> dict[str, Any]:
    """A copy of UCX: its path and version, and the settings for an address of this host."""

def memcpy_bytes_per_s(*, bytes: int, seconds: float) -> float:
    """Rate of a copy between private arrays of one process."""

def available_bytes() -> int:
    """Memory available for new pages, at most what cgroups leave to this process."""
