"""Types that `inspect` and `flight_record` return."""

from __future__ import annotations

from typing import TypedDict


class HistogramCounts(TypedDict):
    """Durations by power of two: `counts[b]` took [2**b, 2**(b+1)) ns; the last bucket is open."""

    counts: list[int]
    sum_ns: int


class LaneSnapshot(TypedDict):
    """A participant. Counters and histograms never fall, even when a lane is reused."""

    index: int
    label: str
    role: str
    ring: str | None
    pid: int
    state: str
    generation: int
    items_published: int
    bytes_published: int
    items_taken: int
    items_released: int
    items_redelivered: int
    items_lost: int
    items_spilled: int
    bytes_spilled: int
    alloc_wait: HistogramCounts
    transfer: HistogramCounts
    queue_wait: HistogramCounts
    use: HistogramCounts


class ClassSnapshot(TypedDict):
    """Slabs of one size."""

    slab_bytes: int
    slabs: int
    in_use_slabs: int


class SegmentSnapshot(TypedDict):
    """A segment."""

    id: int
    owner: str
    tier: str
    """host, device or fake."""
    kind: str
    """memfd, vmm, ipc or fake."""
    device: str
    """UUID of the device; empty for memory of the host."""
    bytes: int
    in_use_bytes: int
    unused_bytes: int
    """Of the bytes in use, those of slabs beyond their leases or items."""
    classes: list[ClassSnapshot]


class RingSnapshot(TypedDict):
    """Items published to a ring and not yet taken."""

    name: str
    items: int
    bytes: int


class PoolSnapshot(TypedDict):
    """State of a pool at one time."""

    name: str
    creator_pid: int
    nonce: int
    """Differs for every pool created, also under the same name."""
    time_ns: int
    lanes: list[LaneSnapshot]
    rings: list[RingSnapshot]
    segments: list[SegmentSnapshot]


class FlightEvent(TypedDict):
    """An event of a lane: leased, aborted, published, taken, released, redelivered or freed."""

    time_ns: int
    lane: int
    kind: str
    cell: int
    bytes: int
    key_low: int
    item_lane: int
