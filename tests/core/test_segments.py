"""Memory of a pool: classes of slabs, slabs on demand, growth and end of segments."""

from __future__ import annotations

import time

import pytest

from flowtrain_core import (
    Consumer,
    Pool,
    PoolFull,
    PoolSpace,
    PoolTimeout,
    Producer,
)


def test_a_pool_without_memory_names_the_way_out(name: str) -> None:
    with Pool.create(name) as pool, pytest.raises(PoolSpace, match="add_segment"):
        Producer(pool).lease((1,), "uint8")


def test_errors_of_exhausted_cells_lanes_and_segments_name_the_way_out(name: str) -> None:
    with Pool.create(name, max_cells=8, max_lanes=3) as pool:
        with pytest.raises(PoolSpace, match="9 slabs.*max_cells=8.*raise max_cells"):
            pool.add_segment(classes=[(64, 9)])
        pool.add_segment(classes=[(64, 8)])
        producers = [Producer(pool), Producer(pool)]
        with pytest.raises(PoolSpace, match="all 3 lanes are taken; raise max_lanes"):
            Consumer(pool)
        producers.pop()
        Consumer(pool)


def test_a_growing_segment_reuses_its_cells(name: str) -> None:
    with Pool.create(name, max_cells=30) as pool, Pool.open(name) as other:
        mine, theirs = pool.add_segment(classes=[(64, 1)]), other.add_segment(classes=[(64, 1)])
        for slabs in range(2, 11):
            pool.drop_segment(mine)
            mine = pool.add_segment(classes=[(64, slabs)])
            other.drop_segment(theirs)
            theirs = other.add_segment(classes=[(64, slabs)])
        with pytest.raises(PoolSpace, match="10 of max_cells=30 cells are free; raise max_cells"):
            pool.add_segment(classes=[(64, 11)])
        small = [pool.add_segment(classes=[(64, 1)]) for _ in range(10)]
        pool.drop_segment(small[3])
        pool.drop_segment(small[8])
        with pytest.raises(PoolSpace, match="2 of max_cells=30 .* but at most 1 are consecutive"):
            pool.add_segment(classes=[(64, 2)])
    with Pool.create(name) as pool:
        for _ in range(64):
            pool.add_segment(classes=[(64, 1)])
        with pytest.raises(PoolSpace, match="all 64 segments are in use; drop a segment"):
            pool.add_segment(classes=[(64, 1)])


def test_memory_without_classes_is_divided_on_demand(name: str) -> None:
    with Pool.create(name, bytes=64 << 20, prefault=False) as pool:
        producer = Producer(pool)

        def fill(size: int) -> int:
            leases = []
            try:
                while True:
                    leases.append(producer.lease((size,), "uint8", timeout_s=0.0))
            except PoolTimeout:
                assert len({lease.address for lease in leases}) == len(leases)
                return len(leases)

        # All memory for one size, then, once no slab is in use, for another.
        assert fill(4 << 20) == 16
        assert fill(9 << 20) == 7
        assert fill(64 << 20) == 1
        assert fill(1 << 16) == 1024
        kept = producer.lease((1,), "uint8")
        with pytest.raises(PoolTimeout):
            producer.lease((64 << 20,), "uint8", timeout_s=0.01)
        kept.abort()
        producer.lease((64 << 20,), "uint8", timeout_s=0.0).abort()
        # Free slabs merge around one in use.
        leases = [producer.lease((1 << 16,), "uint8", timeout_s=0.0) for _ in range(1024)]
        for lease in leases[:511] + leases[512:]:
            lease.abort()
        halves = [producer.lease(((32 << 20) - (1 << 16),), "uint8", timeout_s=0.0)]
        halves.append(producer.lease((32 << 20,), "uint8", timeout_s=0.0))
        with pytest.raises(PoolTimeout):
            producer.lease((1,), "uint8", timeout_s=0.0)
        with pytest.raises(ValueError, match="exceeds the largest slab of 67108864 bytes"):
            producer.lease(((64 << 20) + 1,), "uint8")


def test_cells_follow_from_the_memory_and_a_limit_on_them_is_named(name: str) -> None:
    with Pool.create(name, classes=[(4096, 5000)], prefault=False) as pool:
        pool.add_segment(classes=[(4096, 4000)], prefault=False)
    with Pool.create(name, bytes=64 << 20, prefault=False) as pool:
        producer = Producer(pool)
        leases = [producer.lease((4096,), "uint8", timeout_s=0.0) for _ in range(16384)]
        for _ in range(3):
            pool.add_segment(bytes=64 << 20, prefault=False)
        leases += [producer.lease((4096,), "uint8", timeout_s=0.0) for _ in range(16384)]
        del leases
    with Pool.create(name, bytes=1 << 20, max_cells=16) as pool:
        producer, poller = Producer(pool), Producer(pool, when_full="fail")
        leases = [producer.lease((1,), "uint8") for _ in range(4)]
        limit = (
            "segment 1 can have 4 slabs, a part of max_cells=16, and 1032192 of its 1048576 bytes "
            "are in none: give Pool.create a larger max_cells"
        )
        with pytest.raises(PoolTimeout, match=limit):
            producer.lease((1,), "uint8", timeout_s=0.0)
        with pytest.raises(PoolFull, match=limit):
            poller.lease((1,), "uint8")
        leases[0].abort()
        poller.lease((500_000,), "uint8").abort()


def test_a_released_slab_is_reused_before_a_new_one_is_made(name: str) -> None:
    with Pool.create(name, bytes=1 << 20) as pool:
        producer = Producer(pool)
        addresses = set()
        for _ in range(100):
            lease = producer.lease((5000,), "uint8", timeout_s=0.0)
            addresses.add(lease.address)
            lease.abort()
        assert len(addresses) == 1


def test_a_dropped_segment_keeps_slabs_in_use_and_then_frees_its_memory(name: str) -> None:
    with Pool.create(name, bytes=1 << 20) as pool:
        [first] = pool.stats()["segments"]
        producer = Producer(pool)
        producer.lease((8,), "uint8").publish(7)
        second = pool.add_segment(classes=[(4096, 2)])
        pool.drop_segment(first["id"])
        assert producer.lease((1,), "uint8", timeout_s=0.0).address >> 40 & 0xFF == second
        item = Consumer(pool).get(timeout_s=30)
        assert item.key == 7
        item.release()
        # The next sweep finds no slab in use.
        deadline = time.monotonic() + 10
        while len(pool.stats()["segments"]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(ValueError, match="segment 1 is not one that this handle added"):
            pool.drop_segment(first["id"])
