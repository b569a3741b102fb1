"""200 steps of a stream whose samples may wait for one step; 16 ranks x 8 microbatches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from flowtrain.workloads import preset
from flowtrain_core.packing import Packer
from packing.bars import Bar, worst_load, worst_row
from packing.cases import Case
from packing.rows import Row, Rows

PART = "stream"
SCALE = "1024/16/8"
BARS = {"tiles": 0.998, "video": 0.994, "longtail": 0.985}
_STEPS, _WINDOW = 200, 1.05


def measure(case: Case) -> Iterator[Row]:
    ranks, slots = 16, 8
    work = preset(case.load, 700_000, seed=case.seed)
    cap = max(int(work.tokens.max()), int(1.25 * work.tokens.mean() * 8))
    packer = Packer(ranks=ranks, microbatches=slots, max_tokens=cap, max_age=1)
    first = oldest = over = 0
    efficiency, fill, times = [], [], []
    for _ in range(_STEPS):
        while packer.waiting_tokens < _WINDOW * ranks * slots * cap:
            packer.add(first, int(work.tokens[first]), float(work.cost[first]))
            first += 1
        start = time.thread_time()
        _, plan = packer.step()
        times.append((time.thread_time() - start) * 1e3)
        efficiency.append(plan.efficiency)
        fill.append(plan.fill)
        over += int((plan.bin_tokens > cap).sum())
        oldest = max(oldest, *(row[4] for row in packer.state_dict()["waiting"]))
    yield {
        "name": "Packer",
        "efficiency": statistics.mean(efficiency),
        "fill": statistics.mean(fill),
        "age": oldest,
        "over": over,
        "ms": statistics.median(times),
    }


def bars(rows: Rows) -> Iterator[Bar]:
    for load, bar in BARS.items():
        if found := rows.of(PART, load=load):
            name = f"stream, efficiency, {load}"
            yield worst_load(name, found, "efficiency", bar, at_least=True)
    found = rows.of(PART)
    yield worst_load("stream, fill", found, "fill", 0.98, at_least=True)
    yield worst_row("stream, largest age", found, "age", 1)
    yield worst_row("stream, microbatches over the cap", found, "over", 0)
