"""Bandwidth of the pool: what filling a slab, reading it, and a whole flow of them reach."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy

from flowtrain.bench import progress
from flowtrain.bench.conditions import conditions, pinned
from flowtrain_core import _C, Consumer, Pool, Producer

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
PREFAULT_BYTES = 4 << 30
_SLABS = 4
_LONGEST_S = 60.0


def run(
    sizes: tuple[int, ...] = SIZES, seconds: float = 0.5, prefault_bytes: int = PREFAULT_BYTES
) -> Iterator[dict[str, Any]]:
    """Measure each size, and a cold start.

    Args:
        sizes: Bytes of an item.
        seconds: Time that each figure of a size is measured for, about.
        prefault_bytes: Size of the segment that is made and prefaulted, less where the machine
            has not so much memory left.

    Yields:
        Per size in GB/s (1e9 bytes), at the median and at the 99th percentile of the time:
        `write_cold` (first touch of fresh memory), `write` and `read` (one process, warm, in turn
        with the next), `memcpy` (private memory to private memory, the plain alternative) and
        `flow` (one process writes while another reads). `vs_memcpy` is `write` over `memcpy` at
        the median. Last, how long a cold start takes.
    """
    ratios: dict[int, float] = {}
    for item_bytes in sizes:
        progress.show(f"items of {item_bytes} bytes")
        with pinned() as core:
            times = alone(item_bytes, seconds)
            times["flow"] = through(core, item_bytes, seconds)
        rates: dict[str, float] = {}
        for name, each in times.items():
            for suffix, percentile in (("", 50), ("_p99", 99)):
                rates[name + suffix] = _rate(item_bytes, each, percentile)
        ratios[item_bytes] = round(rates["write"] / rates["memcpy"], 3)
        row = {"bench": "pool", "item_bytes": item_bytes, "vs_memcpy": ratios[item_bytes]}
        progress.clear()
        yield row | rates | conditions()
    progress.show(f"cold start with {prefault_bytes} bytes")
    start = cold_start(prefault_bytes)
    progress.clear()
    yield {
        "bench": "pool",
        "vs_memcpy_64MiB": ratios.get(64 << 20),
        **start,
        **conditions(),
    }


def cold_start(wanted_bytes: int) -> dict[str, float]:
    """Make a pool with one segment of fresh memory, prefaulted by all cores of this process."""
    available: int = _C._available_bytes()  # type: ignore[attr-defined]
    # The segment and as much for everybody else.
    size = min(wanted_bytes, available // 2) // 4096 * 4096
    started = time.perf_counter()
    with Pool.create(_name(), bytes=size):
        took_s = time.perf_counter() - started
    return {
        "prefault_bytes": size,
        "prefault_s": round(took_s, 3),
        "prefault_gib_per_s": round(size / took_s / (1 << 30), 3),
    }


def alone(item_bytes: int, seconds: float) -> dict[str, list[int]]:
    """Times in ns of writing, reading and plain copying in turn, in one process."""
    source = numpy.ones(item_bytes, dtype=numpy.uint8)
    target = numpy.zeros(item_bytes, dtype=numpy.uint8)
    times: dict[str, list[int]] = {"write_cold": [], "write": [], "read": [], "memcpy": []}
    with Pool.create(_name(), classes=[(item_bytes, _SLABS)], prefault=False) as pool:
        producer, consumer = Producer(pool), Consumer(pool)
        # Each slab once: the pages of all of them are touched for the first time.
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


def through(core: int, item_bytes: int, seconds: float) -> list[int]:
    """Times in ns from item to item: one process writes, another, on its own core, reads."""
    here, there = multiprocessing.Pipe()
    with Pool.create(_name(), classes=[(item_bytes, _SLABS)]) as pool:
        reader = multiprocessing.get_context("spawn").Process(
            target=_read, args=(pool.name, item_bytes, core, there), daemon=True
        )
        reader.start()
        there.close()  # Else nobody would hear of a reader that ended early.
        here.recv()
        producer = Producer(pool)
        source = numpy.ones(item_bytes, dtype=numpy.uint8)
        end = time.monotonic() + seconds
        more = True
        while more:
            lease = producer.lease((item_bytes,), "uint8", timeout_s=_LONGEST_S)
            lease.write(source)
            more = time.monotonic() < end
            lease.publish(int(more))
        times: list[int] = here.recv()
        reader.join(_LONGEST_S)
    return times


def _read(name: str, item_bytes: int, core: int, answers: Connection) -> None:
    """Copies items out until one has key 0; answers with the times from each to the next."""
    os.sched_setaffinity(0, {core})
    target = numpy.zeros(item_bytes, dtype=numpy.uint8)
    pool = Pool.open(name, timeout_s=_LONGEST_S)
    consumer = Consumer(pool)
    answers.send(None)
    arrivals, more = [], True
    while more:
        with consumer.get(timeout_s=_LONGEST_S) as item:
            numpy.copyto(target, numpy.asarray(item))
            more = bool(item.key)
        arrivals.append(time.perf_counter_ns())
    answers.send(numpy.diff(arrivals).tolist())


def _timed_ns(copy: Callable[..., None], *arrays: Any) -> int:
    started = time.perf_counter_ns()
    copy(*arrays)
    return time.perf_counter_ns() - started


def _rate(item_bytes: int, times_ns: list[int], percentile: float) -> float:
    """GB/s at a percentile of the times, three digits: a small item may have waited long."""
    if not times_ns:
        return 0.0
    return float(f"{item_bytes / float(numpy.percentile(times_ns, percentile)):.3g}")


def _name() -> str:
    return f"bench-pool-{os.getpid()}-{time.monotonic_ns()}"
