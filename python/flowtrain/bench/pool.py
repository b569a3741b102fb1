"""Bandwidth of the pool: what filling a slab, reading it, and a whole flow of them reach."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy

from flowtrain.bench.conditions import conditions, pinned
from flowtrain_core import Consumer, Pool, Producer

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
_SLABS = 4
_LONGEST_S = 60.0


def run(sizes: tuple[int, ...] = SIZES, seconds: float = 0.5) -> Iterator[dict[str, Any]]:
    """Measure each size.

    Args:
        sizes: Bytes of an item.
        seconds: Time that each figure of a size is measured for, about.

    Yields:
        Per size, medians in GB/s (1e9 bytes): `write_cold` (first touch of fresh memory),
        `write` and `read` (one process, warm), `flow` (one process writes while another reads),
        and `memcpy` (private memory to private memory, the plain alternative).
    """
    for item_bytes in sizes:
        with pinned() as core:
            one = alone(item_bytes, seconds)
            flow = through(core, item_bytes, seconds)
        yield {"bench": "pool", "item_bytes": item_bytes, **one, "flow": flow, **conditions()}


def alone(item_bytes: int, seconds: float) -> dict[str, float]:
    """Write, read and plain copy in turn, in one process."""
    source = numpy.ones(item_bytes, dtype=numpy.uint8)
    target = numpy.zeros(item_bytes, dtype=numpy.uint8)
    cold: list[int] = []
    times: dict[str, list[int]] = {"write": [], "read": [], "memcpy": []}
    with Pool.create(_name(), classes=[(item_bytes, _SLABS)], prefault=False) as pool:
        producer, consumer = Producer(pool), Consumer(pool)
        # Each slab once: the pages of all of them are touched for the first time.
        leases = [producer.lease((item_bytes,), "uint8") for _ in range(_SLABS)]
        for lease in leases:
            cold.append(_copy_ns(numpy.asarray(lease), source))
            lease.abort()
        end = time.monotonic() + 3 * seconds
        while time.monotonic() < end or len(times["read"]) < 3:
            lease = producer.lease((item_bytes,), "uint8")
            times["write"].append(_copy_ns(numpy.asarray(lease), source))
            lease.publish(0)
            with consumer.get() as item:
                times["read"].append(_copy_ns(target, numpy.asarray(item)))
            times["memcpy"].append(_copy_ns(target, source))
    return {"write_cold": _rate(item_bytes, cold)} | {
        name: _rate(item_bytes, each) for name, each in times.items()
    }


def through(core: int, item_bytes: int, seconds: float) -> float:
    """GB/s of one process that writes while another, on its own core, reads."""
    here, there = multiprocessing.Pipe()
    with Pool.create(_name(), classes=[(item_bytes, _SLABS)]) as pool:
        reader = multiprocessing.get_context("spawn").Process(
            target=_read, args=(pool.name, item_bytes, core, there), daemon=True
        )
        reader.start()
        here.recv()
        producer = Producer(pool)
        source = numpy.ones(item_bytes, dtype=numpy.uint8)
        end = time.monotonic() + seconds
        more = True
        while more:
            lease = producer.lease((item_bytes,), "uint8", timeout_s=_LONGEST_S)
            numpy.copyto(numpy.asarray(lease), source)
            more = time.monotonic() < end
            lease.publish(int(more))
        times: list[int] = here.recv()
        reader.join(_LONGEST_S)
    return _rate(item_bytes, times)


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


def _copy_ns(target: Any, source: Any) -> int:
    started = time.perf_counter_ns()
    numpy.copyto(target, source)
    return time.perf_counter_ns() - started


def _rate(item_bytes: int, times_ns: list[int]) -> float:
    """GB/s at the median time."""
    return round(item_bytes / float(numpy.median(times_ns)), 2) if times_ns else 0.0


def _name() -> str:
    return f"bench-pool-{os.getpid()}-{time.monotonic_ns()}"
