"""Processes killed at random moments: nothing is lost and nothing leaks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.processes import Process, Spawn, in_use

from flowtrain_core import Consumer, Pool, Producer

Eventually = Callable[[Callable[[], object]], None]

PRODUCE = """
import os
pool = Pool.open(sys.argv[1]); producer = Producer(pool, max_items=4)
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
identity = int(sys.argv[3])
for count in range(1 << 30):
    key = identity << 32 | count
    array = array_of(key)
    lease = producer.lease((len(array),), 'uint64')
    memoryview(lease)[:] = array
    lease.publish(key)
    os.write(ledger, key.to_bytes(8, 'little'))
"""
CONSUME = """
import os
pool = Pool.open(sys.argv[1]); consumer = Consumer(pool)
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while True:
    item = consumer.get()
    view = memoryview(item)
    if view.tolist() != array_of(item.key).tolist():
        os.write(ledger, (0xBAD).to_bytes(8, 'little'))
    else:
        os.write(ledger, item.key.to_bytes(8, 'little'))
    del view
    item.release()
"""
ARRAY_OF = """
from array import array as array_type
def array_of(key):  # One to three pages.
    return array_type('Q', [key * 0x9E3779B97F4A7C15 & (1 << 64) - 1]) * (512 * (1 + key % 3))
"""


def read_ledger(path: Path) -> list[int]:
    data = path.read_bytes() if path.exists() else b""
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def inject_kills(
    pool: Pool, spawn: Spawn, folder: Path, *, kills: int, seed: int, eventually: Eventually
) -> None:
    """Kills producers and consumers at random, then compares the records of both sides."""
    published, consumed = folder / "published", folder / "consumed"
    chance = random.Random(seed)
    started = 0

    def start(code: str) -> Process:
        nonlocal started
        started += 1
        ledger = published if code is PRODUCE else consumed
        return spawn(ARRAY_OF + code, pool.name, ledger, started)

    kinds = [PRODUCE, PRODUCE, CONSUME, CONSUME]
    processes = [start(code) for code in kinds]
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 0.06))
        victim = chance.randrange(len(kinds))
        processes[victim].end()
        processes[victim] = start(kinds[victim])
    for process, code in zip(processes, kinds, strict=True):
        if code is PRODUCE:
            process.end()
    # All items recorded as published arrive; afterwards no slab is in use.
    eventually(lambda: set(read_ledger(published)) <= set(read_ledger(consumed)))
    for process in processes:
        process.end()
    drain = Consumer(pool)

    def is_drained() -> bool:
        item = drain.try_get()  # Of a producer that was killed before it recorded the item.
        if item is not None:
            item.release()
        return in_use(pool) == 0

    eventually(is_drained)
    taken = read_ledger(consumed)
    assert 0xBAD not in taken
    assert len(set(taken)) >= kills  # There was traffic between the kills.
    assert pool.lost() == 0
    assert len(taken) - len(set(taken)) <= pool.stats()["redelivered"]


@pytest.mark.parametrize("memory", [{"classes": [(12288, 12)]}, {"bytes": 12 * 4096}])
def test_random_kills_lose_and_leak_nothing(
    name: str, spawn: Spawn, tmp_path: Path, eventually: Eventually, memory: dict[str, Any]
) -> None:
    with Pool.create(name, **memory, max_lanes=64) as pool:
        inject_kills(pool, spawn, tmp_path, kills=100, seed=1, eventually=eventually)
        if "bytes" in memory:  # All of it is one piece again.
            Producer(pool).lease((memory["bytes"],), "uint8", timeout_s=0.0).abort()


@pytest.mark.deep
@pytest.mark.limit(600)
def test_many_random_kills_lose_and_leak_nothing(
    name: str, spawn: Spawn, tmp_path: Path, eventually: Eventually
) -> None:
    with Pool.create(name, bytes=12 * 4096, max_lanes=64) as pool:
        inject_kills(pool, spawn, tmp_path, kills=1500, seed=2, eventually=eventually)
