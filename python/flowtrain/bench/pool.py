"""Bandwidth of the pool: writing slabs, reading them, and a flow of both."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy

from flowtrain import progress
from flowtrain.bench.conditions import conditions, pinned
from flowtrain.bench.memory import check_sizes
from flowtrain_core import Consumer, Pool, Producer, _bench

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
PREFAULT_BYTES = 4 << 30
_SLABS = 4
_TIMEOUT_S = 60.0


def run(
    sizes: tuple[int, ...] = SIZES, seconds: float = 0.5, prefault_bytes: int = PREFAULT_BYTES
) -> Iterator[dict[str, Any]]:
    """Measure each size, and a cold start.

    Args:
        sizes: Bytes of an item.
        seconds: Approximate time per figure and size.
        prefault_bytes: Size of the segment to make and prefault; less if the machine has less
            memory available.

    Yields:
        Per size the rates in GB/s (1e9 bytes), at the median and at the 99th percentile of the
        time: `write_cold` (first touch of fresh memory); `write`, `read` and `memcpy` (one process,
        warm, in turn; `memcpy` copies between private arrays, as the baseline); and `flow` (one
        process writes while another reads). `vs_memcpy` is `write` over `memcpy` at the median.
        Last the time of a cold start.

    Raises:
        ValueError: A size is too large for the available memory.
    """
    check_sizes(sizes, _SLABS + 2)  # The slabs, a source and a target.
    ratios: dict[int, float] = {}
    for item_bytes in progress.over("bandwidth of items", sizes):
        with pinned() as core:
            times = one_process(item_bytes, seconds)
            times["flow"] = two_processes(core, item_bytes, seconds)
        rates: dict[str, float] = {}
        for name, each in times.items():
            for suffix, percentile in (("", 50), ("_p99", 99)):
                rates[name + suffix] = _rate(item_bytes, each, percentile)
        ratios[item_bytes] = round(rates["write"] / rates["memcpy"], 3)
        row = {"bench": "pool", "item_bytes": item_bytes, "vs_memcpy": ratios[item_bytes]}
        yield row | rates | conditions()
    progress.show(f"cold start with {prefault_bytes} bytes")
    start = cold_start(prefault_bytes)
    yield {
        "bench": "pool",
        "vs_memcpy_64MiB": ratios.get(64 << 20),
        **start,
        **conditions(),
    }


def cold_start(wanted_bytes: int) -> dict[str, float]:
    """Make a pool with one segment of fresh memory, prefaulted on all cores of this process."""
    # Leaves as much again for other processes.
    size = min(wanted_bytes, _bench.available_bytes() // 2) // 4096 * 4096
    started = time.perf_counter()
    with Pool.create(_name(), bytes=size):
        took_s = time.perf_counter() - started
    return {
        "prefault_bytes": size,
        "prefault_s": round(took_s, 3),
        "prefault_gib_per_s": round(size / took_s / (1 << 30), 3),
    }


def one_process(item_bytes: int, seconds: float) -> dict[str, list[int]]:
    """Times in ns of writes, reads and plain copies, in turn, in one process."""
    source = numpy.ones(item_bytes, dtype=numpy.uint8)
    target = numpy.zeros(item_bytes, dtype=numpy.uint8)
    times: dict[str, list[int]] = {"write_cold": [], "write": [], "read": [], "memcpy": []}
    with Pool.create(_name(), classes=[(item_bytes, _SLABS)], prefault=False) as pool:
        producer, consumer = Producer(pool), Consumer(pool)
        # Each slab once, so that every page is touched for the first time.
        leases = [producer.lease((item_bytes,), "uint8") for _ in range(_SLABS)]
        for lease in leases:
            times["write_cold"].append(_timed_ns(lease.write, source))
            lease.abort()
        end = time.monotonic() + 3 * seconds
        while time.monotonic() < end or len(times["read"]) < 3:
            lease = producer.lease((item_bytes,), "uint8")
            times["write"].append(_timed_ns(lease.write, source))
            lease.publish(0)
            with consumer.get() as item:
                times["read"].append(_timed_ns(numpy.copyto, target, numpy.asarray(item)))
            times["memcpy"].append(_timed_ns(numpy.copyto, target, source))
    return times


def two_processes(core: int, item_bytes: int, seconds: float) -> list[int]:
    """Times in ns between successive items: one process writes, another on its own core reads."""
    here, there = multiprocessing.Pipe()
    with Pool.create(_name(), classes=[(item_bytes, _SLABS)]) as pool:
        reader = multiprocessing.get_context("spawn").Process(
            target=_read, args=(pool.name, item_bytes, core, there), daemon=True
        )
        reader.start()
        there.close()  # So that recv fails if the reader ends early.
        here.recv()
        producer = Producer(pool)
        source = numpy.ones(item_bytes, dtype=numpy.uint8)
        end = time.monotonic() + seconds
        more = True
        while more:
            lease = producer.lease((item_bytes,), "uint8", timeout_s=_TIMEOUT_S)
            lease.write(source)
            more = time.monotonic() < end
            lease.publish(int(more))
        times: list[int] = here.recv()
        reader.join(_TIMEOUT_S)
    return times


def _read(name: str, item_bytes: int, core: int, answers: Connection) -> None:
    """Copy items until one has key 0, then send the times between successive items."""
    os.sched_setaffinity(0, {core})
    target = numpy.zeros(item_bytes, dtype=numpy.uint8)
    pool = Pool.open(name, timeout_s=_TIMEOUT_S)
    consumer = Consumer(pool)
    answers.send(None)
    arrivals, more = [], True
    while more:
        with consumer.get(timeout_s=_TIMEOUT_S) as item:
            numpy.copyto(target, numpy.asarray(item))
            more = bool(item.key)
        arrivals.append(time.perf_counter_ns())
    answers.send(numpy.diff(arrivals).tolist())


def _timed_ns(copy: Callable[..., None], *arrays: Any) -> int:
    started = time.perf_counter_ns()
    copy(*arrays)
    return time.perf_counter_ns() - started


def _rate(item_bytes: int, times_ns: list[int], percentile: float) -> float:
    """GB/s at a percentile of the times, to three digits; slow small items are far below 1."""
    if not times_ns:
        return 0.0
    return float(f"{item_bytes / float(numpy.percentile(times_ns, percentile)):.3g}")


def _name() -> str:
    return f"bench-pool-{os.getpid()}-{time.monotonic_ns()}"
