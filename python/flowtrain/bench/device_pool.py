"""Slabs that a CUDA device writes and reads: page-locked memory of the host, or its own memory."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal

from flowtrain import progress
from flowtrain.bench.conditions import conditions
from flowtrain.bench.memory import check_sizes
from flowtrain_core import Consumer, Item, Lease, Pool, Producer, cuda

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
_SLABS = 4
_TIMEOUT_S = 60.0
_PER_THREAD_DEFAULT = 2  # CU_STREAM_PER_THREAD, so that no stream has to be made.

Path = Literal["pinned", "vmm", "ipc"]

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def run(
    path: Path, sizes: Sequence[int] = SIZES, seconds: float = 0.5, device: int = 0
) -> Iterator[dict[str, Any]]:
    """Measure each size.

    Args:
        path: Kind of the slabs.
        sizes: Bytes of an item.
        seconds: Approximate time per figure and size.
        device: Number of the device, for both processes.

    Yields:
        Per size the median rates in GB/s (1e9 bytes): `write`, from memory of the device into a
        slab; `read`, from a slab into memory of the device; `copy`, between two places of the
        device, in turn with them; and `flow`, in which one process writes items and another reads
        them. `vs_copy` is the median of the ratios of `write` to `copy`. Of a flow in memory of the
        device no host waits for a copy: it is timed from the first item until the last one is read.

    Raises:
        ValueError: A size is too large for the device.
        RuntimeError: There is no such device.
        MemoryUnreachable: Its memory cannot be shared so.
    """
    if reason := cuda.why_not():
        raise RuntimeError(f"flowtrain bench pool --path {path}: {reason}")
    devices = cuda.devices()
    if not 0 <= device < len(devices):
        raise RuntimeError(
            f"flowtrain bench pool --device {device}: there are {len(devices)}, counted from 0"
        )
    facts = devices[device]
    check_sizes(sizes, 2, facts.memory_bytes)  # A source and a target.
    for item_bytes in progress.over(f"items by {path}", sizes):
        row: dict[str, Any] = {"bench": "pool", "path": path, "item_bytes": item_bytes}
        row |= one_process(path, item_bytes, seconds, device)
        row["flow"] = two_processes(path, item_bytes, seconds, device)
        yield row | {"device": facts.name} | conditions()


def one_process(path: Path, item_bytes: int, seconds: float, device: int) -> dict[str, float]:
    """Rates of writes, reads and copies, in turn, on one stream."""
    side = _Side(path, item_bytes, device)
    with _made(path, item_bytes, device) as pool, side.memory() as (source, target):
        lease = Producer(pool, segment=1).lease((item_bytes,), "uint8", timeout_s=_TIMEOUT_S)
        slab = _address(lease)
        copies: dict[str, Callable[[], None]] = {
            "write": partial(side.write, slab, source),
            "read": partial(side.read, target, slab),
            "copy": partial(side.between, target, source),
        }
        for copy in copies.values():
            side.timed_s(copy, 1)  # The first use of memory takes longer.
        repeats = max(1, (16 << 20) // item_bytes)
        times: dict[str, list[float]] = {name: [] for name in copies}
        end = time.monotonic() + 3 * seconds
        while time.monotonic() < end or len(times["copy"]) < 3:
            for name, copy in copies.items():
                times[name].append(side.timed_s(copy, repeats))
        lease.abort(-1)
    found = {
        name: _rounded(item_bytes / statistics.median(each) / 1e9) for name, each in times.items()
    }
    ratios = [copy / write for copy, write in zip(times["copy"], times["write"], strict=True)]
    return found | {"vs_copy": round(statistics.median(ratios), 3)}


def two_processes(path: Path, item_bytes: int, seconds: float, device: int) -> float:
    """Rate of a flow: this process writes items, and another one reads them."""
    side = _Side(path, item_bytes, device)
    here, there = multiprocessing.Pipe()
    with _made(path, item_bytes, device) as pool, side.memory() as (source, _):
        reader = multiprocessing.get_context("spawn").Process(
            target=_read, args=(pool.name, path, item_bytes, device, there), daemon=True
        )
        reader.start()
        there.close()  # So that recv fails if the reader ends early.
        here.recv()
        producer, items = Producer(pool, segment=1), 0
        started = time.monotonic()
        more = True
        while more:
            lease = producer.lease((item_bytes,), "uint8", timeout_s=_TIMEOUT_S)
            side.write(_address(lease), source)
            items += 1
            more = time.monotonic() < started + seconds
            side.publish(lease, int(more))
        here.recv()
        took_s = time.monotonic() - started
        reader.join(_TIMEOUT_S)
    return _rounded(items * item_bytes / took_s / 1e9)


def _read(name: str, path: Path, item_bytes: int, device: int, answers: Connection) -> None:
    """Copy items until one has key 0; answer when all are read."""
    side = _Side(path, item_bytes, device)
    with Pool.open(name, timeout_s=_TIMEOUT_S) as pool, side.memory() as (_, target):
        if path == "pinned":
            cuda.register_host(pool, device=device)
        consumer = Consumer(pool)
        answers.send(None)
        more = True
        while more:
            item = consumer.get(timeout_s=_TIMEOUT_S)
            more = bool(item.key)
            side.read(target, _address(item))
            side.release(item)
        cuda.synchronize(device=device, stream=_PER_THREAD_DEFAULT)
        answers.send(None)


class _Side:
    """One process: its copies, and how its slabs are handed over."""

    def __init__(self, path: Path, item_bytes: int, device: int) -> None:
        self._on_device = path != "pinned"
        self._bytes = item_bytes
        self._where = {"device": device, "stream": _PER_THREAD_DEFAULT}
        self._device = device

    def memory(self) -> AbstractContextManager[tuple[int, int]]:
        """Addresses of two places in memory of the device, in the block."""
        return _Places(self._bytes, self._device)

    def write(self, slab: int, source: int) -> None:
        copy = cuda.copy_on_device if self._on_device else cuda.copy_to_host
        copy(slab, source, self._bytes, **self._where)

    def read(self, target: int, slab: int) -> None:
        copy = cuda.copy_on_device if self._on_device else cuda.copy_to_device
        copy(target, slab, self._bytes, **self._where)

    def between(self, target: int, source: int) -> None:
        cuda.copy_on_device(target, source, self._bytes, **self._where)

    def publish(self, lease: Lease, key: int) -> None:
        if self._on_device:
            return lease.publish(key, _PER_THREAD_DEFAULT)
        cuda.synchronize(**self._where)
        return lease.publish(key)

    def release(self, item: Item) -> None:
        if self._on_device:
            return item.release(_PER_THREAD_DEFAULT)
        cuda.synchronize(**self._where)
        return item.release()

    def timed_s(self, copy: Callable[[], None], repeats: int) -> float:
        """Seconds of one copy of several in a row."""
        started = time.perf_counter()
        for _ in range(repeats):
            copy()
        cuda.synchronize(**self._where)
        return (time.perf_counter() - started) / repeats


class _Places(AbstractContextManager[tuple[int, int]]):
    """Two places in memory of a device, as slabs of a pool of this process."""

    def __init__(self, item_bytes: int, device: int) -> None:
        self._stack = ExitStack()
        self._bytes = item_bytes
        self._device = device

    def __enter__(self) -> tuple[int, int]:
        pool = Pool.create(_name(), max_cells=64)
        self._stack.enter_context(pool)
        segment = pool.add_segment(
            classes=[(_slab(self._bytes), 2)], tier="vmm", device=self._device
        )
        producer = Producer(pool, segment=segment)
        leases = [producer.lease((self._bytes,), "uint8", timeout_s=_TIMEOUT_S) for _ in range(2)]
        for lease in leases:
            self._stack.callback(lease.abort, -1)
        source, target = map(_address, leases)
        return source, target

    def __exit__(self, *_: object) -> None:
        cuda.synchronize(device=self._device, stream=_PER_THREAD_DEFAULT)
        self._stack.close()


def _made(path: Path, item_bytes: int, device: int) -> Pool:
    """A pool whose first segment has the slabs of this path."""
    pool = Pool.create(_name(), max_cells=64)
    try:
        tier: Literal["host", "vmm", "ipc"] = "host" if path == "pinned" else path
        pool.add_segment(classes=[(_slab(item_bytes), _SLABS)], tier=tier, device=device)
        if path == "pinned":
            cuda.register_host(pool, device=device)
    except BaseException:
        pool.close()
        raise
    return pool


def _address(slab: Lease | Item) -> int:
    """Address of a slab for copies on the stream of this benchmark, by DLPack."""
    on_device = slab.__dlpack_device__()[0] != 1
    stream = _PER_THREAD_DEFAULT if on_device else None
    capsule = slab.__dlpack__(stream=stream, max_version=(1, 0))
    tensor = _pointer_of(capsule, b"dltensor_versioned")
    # After the version, the manager, the deleter and the flags.
    return int(ctypes.c_uint64.from_address(tensor + 32).value)


def _slab(item_bytes: int) -> int:
    return math.ceil(item_bytes / 4096) * 4096


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def _name() -> str:
    return f"bench-device-{os.getpid()}-{time.monotonic_ns()}"
