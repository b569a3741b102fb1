"""How fast are the kernels that gather slabs into a packed buffer, and scatter it back?

Two parts: bytes per second at 64 MiB of mixed slabs beside a device-to-device copy, and the wall
clock of one call for 1,024 small slabs beside `torch.cat`. All candidates of a part take turns.
Prints JSON lines; the exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_report import conditions

from flowtrain.train.records.gather import DTYPES, GATHER, SCATTER, pieces_of
from flowtrain_core import cuda

MIXED_BYTES = 64 << 20
MIXED_WIDTH = 2048
SMALL_SLABS = 1024
SMALL_WIDTH = 1024
ENQUEUED = 20
ROUNDS = 25
CALLS = 200
WARM_UP = 20
COPY_BAR = 0.9
CAT_BAR = 3.0
Calls = dict[str, Callable[[], Any]]


@dataclass
class Slabs:
    """Slabs in one memory, in random order and with gaps, and the packed buffer of their rows."""

    memory: torch.Tensor
    pieces: torch.Tensor
    rows: np.ndarray
    offsets: np.ndarray
    packed: torch.Tensor

    @classmethod
    def of(cls, sizes: list[int], width: int, slab: torch.dtype, packed: torch.dtype) -> Slabs:
        """Slabs with these numbers of rows, each aligned to 512 bytes."""
        chosen = random.Random(0)
        order = list(range(len(sizes)))
        chosen.shuffle(order)
        offsets, end = np.zeros(len(sizes), np.int64), 0
        for i in order:
            offsets[i] = end
            end += (sizes[i] * width + 255) // 256 * 256 + 256 * chosen.randint(0, 4)
        rows = np.array(sizes, np.int64)
        return cls(
            memory=torch.randn(end, device="cuda").to(slab),
            pieces=pieces_of([0] * len(sizes), offsets, rows, width=width, planes=1),
            rows=rows,
            offsets=offsets,
            packed=torch.empty(sum(sizes), width, dtype=packed, device="cuda"),
        )

    @property
    def width(self) -> int:
        return self.packed.shape[1]

    @property
    def moved_bytes(self) -> int:
        """Bytes that a copy reads and writes."""
        return self.packed.numel() * (self.memory.element_size() + self.packed.element_size())

    def views(self) -> list[torch.Tensor]:
        return [
            self.memory[offset : offset + rows * self.width].view(rows, self.width)
            for offset, rows in zip(self.offsets.tolist(), self.rows.tolist(), strict=True)
        ]

    def call(self, copy: Callable[..., None]) -> Callable[[], None]:
        """The core's function for these slabs, into or from the packed buffer that exists."""
        table = self.pieces.numpy()
        memories = [(self.memory.data_ptr(), self.memory.numel())]
        dtypes = DTYPES[self.packed.dtype], DTYPES[self.memory.dtype]
        address, rows, width = self.packed.data_ptr(), len(self.packed), self.width
        stream = torch.cuda.current_stream().cuda_stream

        def run() -> None:
            copy(
                address,
                dtypes[0],
                table,
                memories,
                dtypes[1],
                width=width,
                rows=rows,
                device=0,
                stream=stream,
            )

        return run


def mixed_sizes(width: int) -> list[int]:
    """Rows of slabs of 8 KiB to 4 MiB in bfloat16, evenly distributed in their logarithm."""
    chosen = random.Random(1)
    left, sizes = MIXED_BYTES // (2 * width), []
    while left > 0:
        sizes.append(min(left, int(2 ** chosen.uniform(1, 10))))
        left -= sizes[-1]
    return sizes


def device_rates(calls: Calls, moved: dict[str, int]) -> dict[str, float]:
    """Median GB/s of each call, read plus written, by events around calls enqueued in a row."""
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 3):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(ENQUEUED):
                call()
            end.record()
            end.synchronize()
            if turn >= 3:
                rates[name].append(moved[name] * ENQUEUED / start.elapsed_time(end) / 1e6)
    return {name: round(float(np.median(values)), 1) for name, values in rates.items()}


def wall_clock(calls: Calls) -> dict[str, dict[str, float]]:
    """Microseconds of one call until it returns, and until the device is done."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(WARM_UP + CALLS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            kept = call()
            returned = time.perf_counter()
            torch.cuda.synchronize()
            done = time.perf_counter()
            del kept
            if turn >= WARM_UP:
                took[name].append(((returned - started) * 1e6, (done - started) * 1e6))
    return {
        name: {
            "returned_p50_us": round(float(np.median([pair[0] for pair in pairs])), 1),
            "done_p50_us": round(float(np.median([pair[1] for pair in pairs])), 1),
            "done_p99_us": round(float(np.percentile([pair[1] for pair in pairs], 99)), 1),
        }
        for name, pairs in took.items()
    }


def mixed(slab: torch.dtype, packed: torch.dtype) -> dict[str, Any]:
    """Rates of a gather and a scatter beside that of a copy of as many bytes."""
    slabs = Slabs.of(mixed_sizes(MIXED_WIDTH), MIXED_WIDTH, slab, packed)
    half = slabs.moved_bytes // 2
    source = torch.zeros(half, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    stream = torch.cuda.current_stream().cuda_stream

    def copy() -> None:
        cuda.copy_on_device(
            target.data_ptr(), source.data_ptr(), nbytes=half, device=0, stream=stream
        )

    gather, scatter = slabs.call(cuda.gather_rows), slabs.call(cuda.scatter_rows)
    gather()
    assert torch.equal(slabs.packed, torch.cat(slabs.views()).to(packed))
    calls: Calls = {"copy": copy, "gather": gather, "scatter": scatter}
    rates = device_rates(calls, dict.fromkeys(calls, slabs.moved_bytes))
    return {
        "slabs": len(slabs.rows),
        "packed_bytes": slabs.packed.nbytes,
        "slab_dtype": DTYPES[slab],
        "packed_dtype": DTYPES[packed],
        "gbps": rates,
        "gather_over_copy": round(rates["gather"] / rates["copy"], 3),
        "scatter_over_copy": round(rates["scatter"] / rates["copy"], 3),
    }


def small(slab: torch.dtype, packed: torch.dtype, count: int) -> dict[str, Any]:
    """Wall clock of one call for small slabs beside `torch.cat`, whose list of views exists."""
    chosen = random.Random(2)
    sizes = [chosen.randint(2, 8) for _ in range(count)]
    slabs = Slabs.of(sizes, SMALL_WIDTH, slab, packed)
    views, memories, rows = slabs.views(), [slabs.memory], len(slabs.packed)

    def cat() -> torch.Tensor:
        out = torch.cat(views)
        return out if slab == packed else out.to(packed)

    def operator() -> torch.Tensor:
        return GATHER(memories, slabs.pieces, rows, SMALL_WIDTH, packed)

    def table_and_operator() -> torch.Tensor:
        zeros = np.zeros(count, np.int64)
        pieces = pieces_of(zeros, slabs.offsets, slabs.rows, width=SMALL_WIDTH, planes=1)
        return GATHER(memories, pieces, rows, SMALL_WIDTH, packed)

    def scatter_operator() -> None:
        SCATTER(slabs.packed, slabs.pieces, memories)

    assert torch.equal(cat(), operator())
    times = wall_clock(
        {
            "torch.cat": cat,
            "operator": operator,
            "table and operator": table_and_operator,
            "core": slabs.call(cuda.gather_rows),
            "scatter operator": scatter_operator,
        }
    )
    theirs = times["torch.cat"]["done_p50_us"]
    return {
        "slabs": count,
        "slab_bytes": [2 * SMALL_WIDTH * slab.itemsize, 8 * SMALL_WIDTH * slab.itemsize],
        "slab_dtype": DTYPES[slab],
        "packed_dtype": DTYPES[packed],
        "wall_clock": times,
        "cat_over_operator": round(theirs / times["operator"]["done_p50_us"], 2),
        "cat_over_core": round(theirs / times["core"]["done_p50_us"], 2),
    }


def launches() -> dict[str, Any]:
    """Wall clock of a gather of slabs of one short row, by their number: what a launch costs."""
    half = torch.bfloat16
    made = [Slabs.of([1] * count, 64, half, half) for count in (1, 16, 336, 337, 1024, 2720, 2721)]
    return wall_clock({str(len(slabs.rows)): slabs.call(cuda.gather_rows) for slabs in made})


def main() -> None:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("mixed", "small")
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    given = parser.parse_args()
    setting = conditions()
    print(json.dumps({"conditions": setting}), flush=True)
    if setting["why_not"]:
        raise SystemExit(f"gpu_gather: {setting['why_not']}")
    half, full = torch.bfloat16, torch.float32
    bars: dict[str, bool] = {}
    if "mixed" in given.only:
        for slab, packed in ((half, half), (full, full), (full, half), (half, full)):
            row = mixed(slab, packed)
            print(json.dumps({"part": "mixed", **row}), flush=True)
            if slab == packed == half:
                bars["gather"] = row["gather_over_copy"] >= COPY_BAR
                bars["scatter"] = row["scatter_over_copy"] >= COPY_BAR
    if "small" in given.only:
        for slab, packed, count in ((half, half, SMALL_SLABS), (half, full, SMALL_SLABS)):
            row = small(slab, packed, count)
            print(json.dumps({"part": "small", **row}), flush=True)
            bars[f"{SMALL_SLABS} slabs to {DTYPES[packed]}"] = row["cat_over_operator"] >= CAT_BAR
        print(json.dumps({"part": "small", **small(half, half, 16)}), flush=True)
        print(json.dumps({"part": "launches", "wall_clock": launches()}), flush=True)
    print(json.dumps({"bars": bars}), flush=True)
    raise SystemExit(0 if all(bars.values()) else 1)


if __name__ == "__main__":
    main()
