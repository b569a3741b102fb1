"""Time to free a slab and take another, and the unused share of slabs."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy

from flowtrain import progress
from flowtrain.bench.conditions import conditions, percentiles_us
from flowtrain.bench.isolated import call
from flowtrain.workloads import PRESETS, preset
from flowtrain_core import Lease, Pool, Producer

NUM_SLABS = 4096
FILLS = (0.5, 0.9, 0.97)
HIDDEN = 3584
"""Width of the embeddings for the fragmentation: Qwen2.5-VL-7B, in bfloat16."""

_SLICE = 2000  # Pairs.
_SAMPLES = 512
_IN_FLIGHT = 4
_ROOM = 16  # Size of the pool, in largest items. Its pages are never touched.


def run(rounds: int = 20_000) -> Iterator[dict[str, Any]]:
    """Measure one and eight size classes, at three fills, with one and two processes.

    Args:
        rounds: Pairs of freeing a random slab and taking one, per figure and process.

    Yields:
        Per case the median and 99th percentile of a pair in nanoseconds, in C++, over slices of
        2,000 pairs: freed as an aborted lease is, by the lane that takes (`here`), and as an item
        is, by a consumer (`elsewhere`). Then per preset `internal_fragmentation`, the unused share
        of the slabs of its embeddings, in a pool created by bytes. Last a summary, with the time of
        a pair in Python: an aborted lease and the next one.
    """
    medians: dict[tuple[int, float, int], float] = {}
    cases = list(itertools.product((1, 8), FILLS, (1, 2)))
    for classes, fill, processes in progress.over("slabs", cases):
        figures: dict[str, float] = {}
        for where in ("here", "elsewhere"):
            p50, p99 = native_pair_ns(classes, fill, processes, where, rounds)
            figures |= {f"{where}_p50_ns": p50, f"{where}_p99_ns": p99}
        medians[classes, fill, processes] = figures["here_p50_ns"]
        case = {"bench": "slab", "classes": classes, "fill": fill, "processes": processes}
        yield case | figures | conditions()
    unused: dict[str, float] = {}
    for name in progress.over("embeddings of presets", list(PRESETS)):
        unused[name] = round(fragmentation(name), 4)
        found = {"bench": "slab", "preset": name, "internal_fragmentation": unused[name]}
        yield found | conditions()
    yield {
        "bench": "slab",
        "pair_ns_90": medians[1, 0.9, 1],
        "pair_ns_97_two_processes": medians[8, 0.97, 2],
        "internal_fragmentation": max(unused.values()),
        "hidden": HIDDEN,
        **percentiles_us(python_pairs_ns(0.9, rounds), "python_pair_"),
        **conditions(),
    }


def native_pair_ns(
    classes: int, fill: float, processes: int, where: str, rounds: int
) -> tuple[float, float]:
    """Median and 99th percentile in ns, over the slices of all processes."""
    pairs = min(rounds, _SLICE)
    times = call(
        "slab_pairs_ns",
        classes=classes,
        slabs=NUM_SLABS,
        fill=fill,
        processes=processes,
        by_consumer=where == "elsewhere",
        pairs=pairs,
        slices=max(1, rounds // pairs),
    )
    p50, p99 = numpy.percentile(times, (50, 99))
    return round(float(p50), 1), round(float(p99), 1)


def python_pairs_ns(fill: float, rounds: int) -> list[int]:
    """Times in ns of aborting a random lease and leasing another, in one size class."""
    chance = random.Random(0)
    with Pool.create(
        _name(), classes=[(4096, NUM_SLABS)], max_cells=NUM_SLABS, prefault=False
    ) as pool:
        producer = Producer(pool)
        held: list[Lease] = [
            producer.lease((4096,), "uint8", timeout_s=0) for _ in range(int(fill * NUM_SLABS))
        ]
        times = []
        for _ in range(rounds):
            i = chance.randrange(len(held))
            started = time.perf_counter_ns()
            held[i].abort()
            held[i] = producer.lease((4096,), "uint8", timeout_s=0)
            times.append(time.perf_counter_ns() - started)
        for lease in held:
            lease.abort()
    return times


def fragmentation(name: str) -> float:
    """Unused share of the slabs leased for the embeddings of a preset's images.

    The samples go in order through a pool created by bytes, four in flight. So the waste of a slab
    that was cut for another, larger sample counts too.
    """
    tokens = preset(name, _SAMPLES, seed=0).visual_tokens
    shapes = [(int(n), HIDDEN) for n in tokens if n > 0]
    largest = max(rows for rows, _ in shapes) * HIDDEN * 2
    asked = taken = 0
    with Pool.create(_name(), bytes=_ROOM * largest + 4096, prefault=False) as pool:
        producer = Producer(pool)
        leases: deque[Lease] = deque()
        for shape in shapes:
            if len(leases) == _IN_FLIGHT:
                leases.popleft().abort()
            before = pool.stats()["segments"][0]["in_use_bytes"]
            leases.append(producer.lease(shape, "bfloat16", timeout_s=0))
            taken += pool.stats()["segments"][0]["in_use_bytes"] - before
            asked += leases[-1].nbytes
        while leases:
            leases.popleft().abort()
    return 1 - asked / taken


def _name() -> str:
    return f"bench-slab-{os.getpid()}-{time.monotonic_ns()}"
