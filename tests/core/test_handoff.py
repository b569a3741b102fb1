"""Items between processes: contents, keys, order, without copies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from core.processes import ROOT, Spawn

from flowtrain_core import Consumer, Pool, Producer


def test_the_example_hands_an_array_over() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "handoff.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(r"key 7: \w+ float32 \(576, 1024\), mean 511\.5\n", run.stdout)


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, 2**64, 2**128 - 1])
def test_a_key_has_128_bits(pool: Pool, key: int) -> None:
    Producer(pool).lease((1,), "uint8").publish(key)
    with Consumer(pool).get() as item:
        assert item.key == key


@pytest.mark.parametrize("key", [-1, 2**128])
def test_a_key_beyond_128_bits_is_refused_and_the_lease_lives_on(pool: Pool, key: int) -> None:
    lease = Producer(pool).lease((1,), "uint8")
    with pytest.raises(ValueError, match=r"0 to 2\*\*128 - 1"):
        lease.publish(key)
    lease.publish(3)


def test_items_of_a_ring_come_in_order_and_rings_are_apart(name: str) -> None:
    with Pool.create(name, classes=[(4096, 8)], rings=("a", "b")) as pool:
        assert pool.rings == ("a", "b")
        to_a, to_b = Producer(pool, "a"), Producer(pool, "b")
        for key in range(3):
            to_a.lease((1,), "uint8").publish(key)
            to_b.lease((1,), "uint8").publish(key + 10)
        for ring, first in (("a", 0), ("b", 10)):
            consumer = Consumer(pool, ring)
            for key in (first, first + 1, first + 2):
                with consumer.get() as item:
                    assert item.key == key
            assert consumer.try_get() is None


def test_reader_and_writer_map_the_same_pages(name: str, spawn: Spawn) -> None:
    def memory_files(pid: int | str) -> set[tuple[str, str]]:
        maps = Path(f"/proc/{pid}/maps").read_text()
        return set(re.findall(rf"(\w\w:\w\w) (\d+) +/memfd:{re.escape(name)}", maps))

    with Pool.create(name, bytes=1 << 20) as pool:
        reader = spawn(
            "pool = Pool.open(sys.argv[1]); item = Consumer(pool).get()\n"
            "print(bytes(memoryview(item)).hex()); sys.stdin.readline()",
            name,
        )
        lease = Producer(pool).lease((4,), "uint8")
        memoryview(lease)[:] = b"\x01\x02\x03\x04"
        lease.publish(1)
        assert reader.line() == "01020304"
        assert memory_files("self") == memory_files(reader.popen.pid) != set()


def test_an_item_names_the_process_that_published_it(name: str, spawn: Spawn) -> None:
    with Pool.create(name, classes=[(4096, 2)], label="main") as pool:
        spawn(
            "pool = Pool.open(sys.argv[1], label='encoder.3')\n"
            "Producer(pool).lease((2, 3), 'int16').publish(5)\n",
            name,
        ).wait()
        with Consumer(pool).get() as item:
            assert (item.producer, item.shape, item.dtype) == ("encoder.3", (2, 3), "int16")
            assert (item.nbytes, item.attempt) == (12, 0)
            assert item.address >> 40 & 0xFF == 1


def test_every_process_may_own_memory_that_others_read(name: str, spawn: Spawn) -> None:
    with Pool.create(name, rings=("there", "back")) as pool:
        other = spawn(
            "pool = Pool.open(sys.argv[1]); pool.add_segment(classes=[(4096, 1)])\n"
            "item = Consumer(pool, 'there').get()\n"
            "lease = Producer(pool, 'back').lease((1,), 'uint8')\n"
            "memoryview(lease)[0] = memoryview(item)[0] + 1\n"
            "lease.publish(2); sys.stdin.readline()\n",
            name,
        )
        segment = pool.add_segment(classes=[(4096, 1)])
        lease = Producer(pool, "there", segment=segment).lease((1,), "uint8")
        memoryview(lease)[0] = 41
        lease.publish(1)
        item = Consumer(pool, "back").get()
        assert memoryview(item)[0] == 42
        assert item.address >> 40 & 0xFF != segment
        other.tell()


def test_counters_add_up(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    for key in range(5):
        producer.lease((10,), "float64").publish(key)
        consumer.get().release()
    held = producer.lease((70000,), "uint8")
    stats = pool.stats()
    assert stats["items_published"] == stats["items_taken"] == stats["items_released"] == 5
    assert (stats["bytes_published"], stats["redelivered"], stats["lost"]) == (400, 0, 0)
    (segment,) = stats["segments"]
    assert (segment["owner"], segment["slabs"], segment["in_use_slabs"]) == ("main", 6, 1)
    assert segment["in_use_bytes"] == 1 << 20
    held.abort()
    assert pool.stats()["segments"][0]["in_use_slabs"] == 0


def test_an_item_is_counted_before_it_can_be_taken(name: str, spawn: Spawn) -> None:
    with Pool.create(name, classes=[(4096, 512)]) as pool:
        # In reverse, so that each item of a batch is pushed on its own: that takes a while.
        spawn(
            "producer = Producer(Pool.open(sys.argv[1]))\n"
            "for first in range(0, 25600, 256):\n"
            "    leases = [producer.lease((16,), 'uint8') for _ in range(256)]\n"
            "    producer.publish_many(leases[::-1], range(first, first + 256))\n",
            name,
        )
        consumer = Consumer(pool)
        for taken in range(1, 25601):
            consumer.get(timeout_s=30).release()
            if taken % 256 == 1:
                stats = pool.stats()
                assert stats["items_published"] >= taken
                assert stats["bytes_published"] >= 16 * taken


def test_the_smallest_free_slab_is_taken(pool: Pool) -> None:
    producer = Producer(pool)
    small = [producer.lease((1 << 16,), "uint8") for _ in range(4)]
    spilled = producer.lease((1,), "uint8")
    assert pool.stats()["segments"][0]["in_use_bytes"] == 4 * (1 << 16) + (1 << 20)
    del small, spilled
