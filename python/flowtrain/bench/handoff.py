"""Latency of an item from one Python process to another, and back."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flowtrain.bench.conditions import conditions, percentiles_us, pinned
from flowtrain_core import Consumer, Pool, Producer

WARM_UP = 500
_TIMEOUT_S = 60.0


def mapped_memory(name: str) -> list[tuple[str, str]]:
    """Device and inode of each segment of a pool that this process maps."""
    maps = Path("/proc/self/maps").read_text()
    return sorted(set(re.findall(rf"(\w+:\w+) (\d+) +/memfd:{re.escape(name)}", maps)))


def _serve(name: str, item_bytes: int, core: int, answers: Connection) -> None:
    """Answer every item with one of the same size, until an item has key 0."""
    os.sched_setaffinity(0, {core})
    pool = Pool.open(name, timeout_s=_TIMEOUT_S)
    consumer, producer = Consumer(pool, "there"), Producer(pool, "back")
    shape = (item_bytes,)
    ages: list[int] = []
    answers.send(None)
    while True:
        item = consumer.get(timeout_s=_TIMEOUT_S)
        now, sent = time.perf_counter_ns(), item.key
        item.release()
        if sent == 0:
            break
        ages.append(now - sent)
        producer.lease(shape, "uint8", timeout_s=_TIMEOUT_S).publish(sent)
    answers.send((ages, mapped_memory(name)))


class Handoff:
    """Two processes that pass an item back and forth without a copy.

    Args:
        core: Core of the other process.
        item_bytes: Size of the item.
    """

    def __init__(self, core: int, item_bytes: int = 64) -> None:
        self._shape = (item_bytes,)
        self._pool = Pool.create(
            f"bench-handoff-{os.getpid()}-{time.monotonic_ns()}",
            classes=[(max(4096, item_bytes), 8)],
            rings=("there", "back"),
        )
        self._answers, theirs = multiprocessing.Pipe()
        self._peer = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(self._pool.name, item_bytes, core, theirs), daemon=True
        )
        self._peer.start()
        theirs.close()  # So that recv fails if the peer ends early.
        self._answers.recv()
        self._producer = Producer(self._pool, "there")
        self._consumer = Consumer(self._pool, "back")

    def round_trip(self) -> None:
        """Lease and publish an item, wait for its answer, and release it."""
        lease = self._producer.lease(self._shape, "uint8", timeout_s=_TIMEOUT_S)
        lease.publish(time.perf_counter_ns())
        self._consumer.get(timeout_s=_TIMEOUT_S).release()

    def finish(self) -> tuple[list[int], bool]:
        """Age in ns of every item on arrival, and whether both sides map the same memory."""
        self._producer.lease(self._shape, "uint8").publish(0)
        ages, theirs = self._answers.recv()
        return ages, theirs == mapped_memory(self._pool.name) != []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._peer.kill()
        self._peer.join(_TIMEOUT_S)
        self._pool.close()


def spinning(core: int, item_bytes: int, rounds: int) -> tuple[list[float], bool]:
    """One-way times in ns between two spinning processes, as half of each round trip."""
    with Handoff(core, item_bytes) as handoff:
        times = [float("nan")] * (rounds + WARM_UP)
        for i in range(len(times)):
            started = time.perf_counter_ns()
            handoff.round_trip()
            times[i] = (time.perf_counter_ns() - started) / 2
        _, same = handoff.finish()
    return times[WARM_UP:], same


def sleeping(core: int, rounds: int, pause_s: float = 0.003) -> list[int]:
    """One-way times in ns to a sleeping reader."""
    with Handoff(core) as handoff:
        for _ in range(rounds):
            time.sleep(pause_s)
            handoff.round_trip()
        ages, _ = handoff.finish()
    return ages[rounds // 10 :]


def run(item_bytes: int, rounds: int) -> dict[str, Any]:
    """Measure the hand-off on this machine, to a spinning and to a sleeping reader."""
    with pinned() as core:
        spin_ns, same = spinning(core, item_bytes, rounds)
        sleep_ns = sleeping(core, min(rounds, 500))
    return {
        "bench": "handoff",
        "item_bytes": item_bytes,
        **percentiles_us(spin_ns, "spin_"),
        **percentiles_us(sleep_ns, "sleep_"),
        "same_physical_pages": same,
        "rounds": rounds,
        **conditions(),
    }
