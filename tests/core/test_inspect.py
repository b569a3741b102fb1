"""Inspection of a pool, in use and after all its processes were killed."""

from __future__ import annotations

import os

import pytest
from core.processes import Spawn

import flowtrain_core
from flowtrain_core import Consumer, Pool, PoolNotFound, Producer, flight_record, inspect

BUSY = """
pool = Pool.create(sys.argv[1], bytes=1 << 16, label="encoder.0")
producer, consumer = Producer(pool), Consumer(pool)
producer.lease((100,), "uint8").publish(7)
item = consumer.get()
producer.lease((50,), "uint8").publish(8)
lease = producer.lease((10,), "uint8")
print("busy", flush=True)
time.sleep(60)
"""


def test_a_crash_leaves_a_record_of_every_lane(name: str, spawn: Spawn) -> None:
    process = spawn(BUSY, name)
    assert process.line() == "busy"
    process.kill()
    events = flight_record(name)
    assert [(e["kind"], e["bytes"]) for e in events] == [
        ("leased", 100),
        ("published", 100),
        ("taken", 100),
        ("leased", 50),
        ("published", 50),
        ("leased", 10),
    ]
    assert [e["key_low"] for e in events if e["kind"] in ("published", "taken")] == [7, 7, 8]
    assert [e["time_ns"] for e in events] == sorted(e["time_ns"] for e in events)
    pool = inspect(name)
    assert {lane["state"] for lane in pool["lanes"]} == {"dead"}
    assert {lane["label"] for lane in pool["lanes"]} == {"encoder.0"}
    assert pool["rings"] == [{"name": "default", "items": 1, "bytes": 50}]
    [segment] = pool["segments"]
    assert sum(size["in_use_slabs"] for size in segment["classes"]) == 3


def test_each_wait_is_counted_on_its_side(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    for key in range(3):
        producer.lease((1,), "uint8").publish(key)
    for _ in range(2):
        consumer.get().release()
    with pytest.raises(flowtrain_core.PoolTimeout):
        consumer.get().release()
        consumer.get(timeout_s=0.0)
    ports = {lane["role"]: lane for lane in inspect(pool.name)["lanes"]}
    assert sum(ports["producer"]["alloc_wait"]["counts"]) == 3
    assert sum(ports["producer"]["transfer"]["counts"]) == 3
    assert sum(ports["consumer"]["queue_wait"]["counts"]) == 3
    assert sum(ports["consumer"]["use"]["counts"]) == 3
    # The first item waited for two more to be published.
    assert ports["consumer"]["queue_wait"]["sum_ns"] > 0
    assert ports["consumer"]["ring"] == "default"
    assert ports["pool"]["ring"] is None
    assert ports["pool"]["pid"] == os.getpid()


def test_an_observer_takes_no_lane(pool: Pool) -> None:
    before = len(pool.lanes())
    for _ in range(3):
        inspect(pool.name)
    assert len(pool.lanes()) == before


def test_a_missing_pool_is_named() -> None:
    with pytest.raises(PoolNotFound, match="no-such-pool"):
        inspect("no-such-pool")
