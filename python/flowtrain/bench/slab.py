"""What giving a slab back and leasing another costs, the fuller the pool the harder."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

from flowtrain.bench.conditions import conditions, percentiles_us
from flowtrain_core import Lease, Pool, Producer

NUM_SLABS = 4096
FILLS = (0.5, 0.9, 0.97)
CLASSES = {"one": (4096,), "eight": tuple(4096 * (i + 1) for i in range(8))}


def run(rounds: int = 20_000) -> Iterator[dict[str, Any]]:
    """Measure one size class and eight, each at three fills.

    Args:
        rounds: Pairs of giving back and leasing, of random slabs, per figure.

    Yields:
        Per case the median and 99th percentile of a pair, from Python.
    """
    for name, sizes in CLASSES.items():
        for fill in FILLS:
            yield {
                "bench": "slab",
                "classes": name,
                "fill": fill,
                **percentiles_us(pairs(sizes, fill, rounds), "pair_"),
                **conditions(),
            }


def pairs(sizes: tuple[int, ...], fill: float, rounds: int) -> list[int]:
    """Times in ns of giving one of the leased slabs back and leasing another of its size."""
    classes = [(size, NUM_SLABS // len(sizes)) for size in sizes]
    chance = random.Random(0)
    with Pool.create(
        f"bench-slab-{os.getpid()}", classes=classes, max_cells=NUM_SLABS, prefault=False
    ) as pool:
        producer = Producer(pool)
        held: list[Lease] = [
            producer.lease((size,), "uint8", timeout_s=0)
            for size, count in classes
            for _ in range(int(fill * count))
        ]
        times = []
        for _ in range(rounds):
            i = chance.randrange(len(held))
            shape = held[i].shape
            started = time.perf_counter_ns()
            held[i].abort()
            held[i] = producer.lease(shape, "uint8", timeout_s=0)
            times.append(time.perf_counter_ns() - started)
        for lease in held:
            lease.abort()
    return times
